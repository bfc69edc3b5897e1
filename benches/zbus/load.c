/* Load for a Zbus server from one thread: load MODE HOST PORT SECONDS CONNECTIONS WINDOW TOPIC [MESSAGES]
 *
 * Modes: produce (WINDOW in flight on each connection), fill (likewise), consume (WINDOW waiting on each connection, which servers are told
 * where it is more than one), rpc (CONNECTIONS callers with WINDOW calls each, 8 service connections in the same process). It ends after
 * SECONDS, or with the last of so many MESSAGES. Prints one line of JSON: messages, seconds, p50 and p99 in microseconds, and the seconds
 * of processor that the generator itself took.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BODY 1024
#define RING (1 << 16)
#define SERVICES 8
#define BUFFER (1 << 20)

struct conn {
    int fd, service, blocked;
    char *in, *out;
    size_t have, queued, sent;
};

static struct conn conns[512];
static int count, ep;
static double sent_at[RING];
static float *latencies;
static uint64_t sequence, answered, latency_count;
static uint64_t limit = UINT64_MAX;
static char body[BODY + 1];
static const char *topic, *several = "";
static char mode;
static int failed;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void flush_out(struct conn *c) {
    while (c->sent < c->queued) {
        ssize_t n = write(c->fd, c->out + c->sent, c->queued - c->sent);
        if (n < 0) {
            if (errno != EAGAIN) die("write");
            break;
        }
        c->sent += n;
    }
    if (c->sent == c->queued) c->sent = c->queued = 0;
    int blocked = c->queued > 0;
    if (blocked == c->blocked) return;
    // Only when it changes: a call of the system per write would slow the generator down, not the server.
    c->blocked = blocked;
    struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static void put(struct conn *c, const char *text, size_t size) {
    if (c->queued + size > BUFFER) die("output buffer");
    memcpy(c->out + c->queued, text, size);
    c->queued += size;
}

static void send_produce(struct conn *c) {
    char head[512];
    if (sequence >= limit) return;
    uint64_t id = sequence++;
    int size = mode == 'r' ? 74 : BODY;
    int n = sprintf(head,
                    "GET / HTTP/1.1\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n%stopic: %s\r\n"
                    "connection: Keep-Alive\r\ncmd: produce\r\nid: 00000000-0000-0000-0000-%012llu\r\nversion: "
                    "0.9.0\r\n\r\n",
                    size, mode == 'r' ? "ack: 0\r\n" : "", topic, (unsigned long long)id);
    sent_at[id % RING] = now();
    put(c, head, n);
    put(c, body, size);
}

static void send_consume(struct conn *c) {
    char head[512];
    uint64_t id = sequence++;
    int n = sprintf(head,
                    "GET / HTTP/1.1\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 0\r\n%sconsume_group: "
                    "%s\r\ntopic: %s\r\nconnection: Keep-Alive\r\ncmd: consume\r\nid: "
                    "00000000-0000-0000-0000-%012llu\r\nversion: 0.9.0\r\n\r\n",
                    several, topic, topic, (unsigned long long)id);
    sent_at[id % RING] = now();
    put(c, head, n);
}

static void copy_header(char *to, size_t room, const char *head, size_t size, const char *name) {
    char *at = memmem(head, size, name, strlen(name));
    *to = 0;
    if (!at) return;
    at += strlen(name);
    char *end = memmem(at, head + size - at, "\r\n", 2);
    size_t n = end - at < (long)room - 1 ? (size_t)(end - at) : room - 1;
    memcpy(to, at, n);
    to[n] = 0;
}

static void serve(struct conn *c, const char *head, size_t size) {
    char sender[64], origin[64], out[512];
    copy_header(sender, sizeof sender, head, size, "\r\nsender: ");
    copy_header(origin, sizeof origin, head, size, "\r\norigin_id: ");
    send_consume(c);
    int n = sprintf(out,
                    "GET / HTTP/1.1\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 13\r\nrecver: "
                    "%s\r\nack: 0\r\ntopic: %s\r\nconnection: Keep-Alive\r\nid: %s\r\ncmd: route\r\nversion: "
                    "0.9.0\r\norigin_status: 200\r\n\r\n{\"result\": 3}",
                    sender, topic, origin);
    put(c, out, n);
}

static void take(struct conn *c, const char *head, size_t size) {
    char id[64];
    if (strncmp(head, "HTTP/1.1 200", 12)) {
        failed++;
        fprintf(stderr, "load: %.*s\n", (int)(size < 300 ? size : 300), head);
        if (failed > 3) exit(1);
    }
    if (c->service) {
        serve(c, head, size);
        return;
    }
    copy_header(id, sizeof id, head, size, "\r\nid: ");
    if (strlen(id) < 36) return;
    uint64_t number = strtoull(id + 24, NULL, 10);
    if (latency_count < (1u << 23)) latencies[latency_count++] = (now() - sent_at[number % RING]) * 1e6;
    answered++;
    if (mode == 'c') send_consume(c);
    else send_produce(c);
}

static void readable(struct conn *c) {
    ssize_t n = read(c->fd, c->in + c->have, BUFFER - c->have);
    if (n <= 0) die(n ? "read" : "closed by the server");
    c->have += n;
    size_t pos = 0;
    for (;;) {
        char *end = memmem(c->in + pos, c->have - pos, "\r\n\r\n", 4);
        if (!end) break;
        size_t size = end + 4 - (c->in + pos);
        char length[32];
        copy_header(length, sizeof length, c->in + pos, size, "\r\ncontent-length: ");
        size_t whole = size + strtoul(length, NULL, 10);
        if (c->have - pos < whole) break;
        take(c, c->in + pos, size);
        pos += whole;
    }
    memmove(c->in, c->in + pos, c->have - pos);
    c->have -= pos;
    flush_out(c);
}

static struct conn *add(const char *host, int port) {
    struct conn *c = &conns[count++];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->in = malloc(BUFFER);
    c->out = malloc(BUFFER);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    return c;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 9) {
        fprintf(stderr, "usage: load fill|produce|consume|rpc HOST PORT SECONDS CONNECTIONS WINDOW TOPIC [MESSAGES]\n");
        return 2;
    }
    mode = argv[1][0];
    int port = atoi(argv[3]), connections = atoi(argv[5]), window = atoi(argv[6]);
    double seconds = atof(argv[4]);
    topic = argv[7];
    ep = epoll_create1(0);
    latencies = malloc(sizeof(float) << 23);
    memset(body, 'x', BODY);
    if (mode == 'r') memcpy(body, "{\"@type\":\"io.zbus.rpc.Request\",\"method\":\"plus\",\"module\":\"\",\"params\":[1,2]}", 74);
    // Of consumers: what comes after the last message would be waiting, not consuming.
    if (argc == 9) limit = strtoull(argv[8], NULL, 10);
    if (mode == 'c' && window > 1) several = "consume_several: 1\r\n";
    for (int i = 0; mode == 'r' && i < SERVICES; i++) {
        struct conn *c = add(argv[2], port);
        c->service = 1;
        send_consume(c);
        flush_out(c);
    }
    if (mode == 'r') usleep(300000);
    int first = count;
    for (int i = 0; i < connections; i++) add(argv[2], port);
    double start = now(), end = start + seconds;
    for (int i = first; i < count; i++) {
        for (int w = 0; w < window; w++) {
            if (mode == 'c') send_consume(&conns[i]);
            else send_produce(&conns[i]);
        }
        flush_out(&conns[i]);
    }
    struct epoll_event events[64];
    double t;
    while ((t = now()) < end && answered < limit) {
        int n = epoll_wait(ep, events, 64, 100);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c);
            else flush_out(c);
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double used = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    double p50 = latency_count ? latencies[latency_count / 2] : 0;
    double p99 = latency_count ? latencies[latency_count * 99 / 100] : 0;
    printf("{\"messages\": %llu, \"seconds\": %.3f, \"p50_us\": %.0f, \"p99_us\": %.0f, \"load_s\": %.3f}\n",
           (unsigned long long)answered, t - start, p50, p99, used);
    return 0;
}
