/* A load generator for the T2 wire: one thread, raw sockets, epoll, frames built once.
 *
 *   load ADDRESS publish|request IN_FLIGHT RECEIVERS plain|gzip SECONDS SERVER_PID < PAYLOAD
 *
 * ADDRESS is tcp:IP:PORT or unix:PATH. One connection publishes (or requests); RECEIVERS others
 * subscribe (or, a single one, serves and answers with the payload it was sent). Prints one JSON
 * object.
 *
 * The invariant: every frame that comes is the one that must come next on its connection, byte for
 * byte but for the server's own ids, or the run is void (exit code 1). So a figure is never made of
 * messages that were lost, doubled, reordered, changed or refused.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 17
#define SLOTS 65536                   /* how far deliveries may lag behind before sending waits */
#define FRAME_LIMIT (1 << 20)
#define INPUT_BYTES (2 * FRAME_LIMIT) /* one whole frame always fits behind a partial one */
#define WARM_UP_S 0.2
#define DRAIN_S 2.0
#define TOPIC "bench/load"
#define DIGITS 5                      /* of the sequence number, 7 bits each, in the payload */

typedef struct { uint8_t *bytes; size_t length, capacity; } Buffer;

typedef struct {
    int fd;
    Buffer out;
    size_t out_start;
    uint8_t *in;
    size_t in_length;
    bool wants_write;
    uint32_t last_id, last_acked; /* ids count 1, 2, 3 ... as those of the real client */
    uint64_t next;                /* sequence number of the next delivery (or reply) */
} Connection;

static Connection connections[MAX_CONNECTIONS];
static int connection_count, receivers, poller;
static bool requesting;
static uint64_t in_flight_limit, started, acked, completed; /* messages */
static struct { double sent; int missing; } slots[SLOTS];
static double now;
static uint32_t first_id; /* the sender's id of sequence number 0 */

/* The content of a Pub or Req, and of a Rsp behind its req_id; both with the sequence number. */
static Buffer message, response;
static size_t message_digits, response_digits;

static bool measuring;
static uint64_t measured;
static float *latencies;
static size_t latency_capacity;

static void fail(const char *what, const uint8_t *bytes, size_t length)
{
    fprintf(stderr, "load: %s", what);
    for (size_t i = 0; i < length && i < 96; i++) fprintf(stderr, "%s%02x", i ? " " : ": ", bytes[i]);
    fputc('\n', stderr);
    exit(1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---------------------------------------------------------------- CBOR */

static void put(Buffer *b, const void *bytes, size_t length)
{
    if (b->length + length > b->capacity) {
        b->capacity = 2 * (b->length + length) + 4096;
        b->bytes = realloc(b->bytes, b->capacity);
        if (!b->bytes) fail("out of memory", NULL, 0);
    }
    memcpy(b->bytes + b->length, bytes, length);
    b->length += length;
}

static void put_head(Buffer *b, int major, uint32_t n)
{
    uint8_t h[5] = {(uint8_t)(major << 5)};
    size_t length = 1;
    if (n < 24) h[0] |= (uint8_t)n;
    else if (n < 1 << 8) h[0] |= 24, h[1] = (uint8_t)n, length = 2;
    else if (n < 1 << 16) h[0] |= 25, h[1] = (uint8_t)(n >> 8), h[2] = (uint8_t)n, length = 3;
    else {
        h[0] |= 26;
        for (int i = 0; i < 4; i++) h[1 + i] = (uint8_t)(n >> (24 - 8 * i));
        length = 5;
    }
    put(b, h, length);
}

static void put_text(Buffer *b, const char *text)
{
    put_head(b, 3, (uint32_t)strlen(text));
    put(b, text, strlen(text));
}

/* Returns the offset of the digits: the first elements are 128..255, so always two bytes each. */
static size_t put_payload(Buffer *b, const uint8_t *data, size_t length, bool gzip)
{
    put_text(b, "payload");
    put_head(b, 5, 2);
    put_text(b, "data");
    put_head(b, 4, (uint32_t)length);
    size_t digits = b->length;
    for (size_t i = 0; i < length; i++) put_head(b, 0, i < DIGITS ? 128 : data[i]);
    put_text(b, "is_compressed");
    put(b, gzip ? "\xf5" : "\xf4", 1);
    return digits;
}

static void set_digits(uint8_t *at, uint64_t number)
{
    for (int i = 0; i < DIGITS; i++) at[2 * i + 1] = (uint8_t)(128 | (number >> (7 * i) & 127));
}

typedef struct { const uint8_t *at, *end, *frame; } Reader;

static bool take(Reader *r, const void *bytes, size_t length)
{
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, bytes, length)) return false;
    r->at += length;
    return true;
}

#define TAKE(reader, literal) take(reader, literal, sizeof literal - 1)

static uint32_t take_number(Reader *r)
{
    size_t left = (size_t)(r->end - r->at);
    size_t extra = left && *r->at >= 24 && *r->at <= 26 ? (size_t)1 << (*r->at - 24) : 0;
    if (left <= extra || *r->at > 26) fail("not a number in", r->frame, (size_t)(r->end - r->frame));
    uint32_t n = extra ? 0 : *r->at;
    for (size_t i = 1; i <= extra; i++) n = n << 8 | r->at[i];
    r->at += 1 + extra;
    return n;
}

/* ---------------------------------------------------------------- sending */

/* The envelope up to `content`, and the length header once the rest is there. */
static size_t begin(Connection *c)
{
    size_t start = c->out.length;
    put(&c->out, "\0\0\0\0\xa2\x62id", 8);
    put_head(&c->out, 0, ++c->last_id);
    put(&c->out, "\x67" "content", 8);
    return start;
}

static void end(Connection *c, size_t start)
{
    uint32_t length = htonl((uint32_t)(c->out.length - start - 4));
    memcpy(c->out.bytes + start, &length, 4);
}

static void send_simple(Connection *c, const char *kind, const char *topic)
{
    size_t start = begin(c);
    if (topic) {
        put_head(&c->out, 5, 1);
        put_text(&c->out, kind);
        put_head(&c->out, 5, 1);
        put_text(&c->out, "topic");
        put_text(&c->out, topic);
    } else put_text(&c->out, kind);
    end(c, start);
}

static void send_message(Connection *c)
{
    size_t start = begin(c);
    set_digits(message.bytes + message_digits, started);
    put(&c->out, message.bytes, message.length);
    end(c, start);
    /* Complete with the Ack and every delivery, or with the Ack and the reply. */
    slots[started % SLOTS].missing = 1 + receivers;
    slots[started % SLOTS].sent = now;
    started++;
}

static void send_response(Connection *c, uint32_t request, uint64_t number)
{
    size_t start = begin(c);
    put(&c->out, "\xa1\x63Rsp\xa3\x66req_id", 13);
    put_head(&c->out, 0, request);
    set_digits(response.bytes + response_digits, number);
    put(&c->out, response.bytes, response.length);
    end(c, start);
}

static void flush(Connection *c)
{
    while (c->out_start < c->out.length) {
        ssize_t n = write(c->fd, c->out.bytes + c->out_start, c->out.length - c->out_start);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) fail(strerror(errno), NULL, 0);
        if (n < 0) break;
        c->out_start += (size_t)n;
    }
    bool wants_write = c->out_start < c->out.length;
    if (!wants_write) c->out.length = c->out_start = 0;
    if (wants_write != c->wants_write) {
        struct epoll_event e = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
        c->wants_write = wants_write;
    }
}

/* ---------------------------------------------------------------- receiving */

static void arrived(uint64_t number)
{
    if (number >= started) fail("an answer to what was not sent", NULL, 0);
    if (--slots[number % SLOTS].missing) return;
    completed++;
    if (!measuring) return;
    if (measured == latency_capacity) {
        latency_capacity = 2 * latency_capacity + 65536;
        latencies = realloc(latencies, latency_capacity * sizeof *latencies);
        if (!latencies) fail("out of memory", NULL, 0);
    }
    latencies[measured++] = (float)((now - slots[number % SLOTS].sent) * 1e6);
}

static bool on_ack(Connection *c, Reader *r)
{
    uint32_t id = take_number(r);
    if (id != ++c->last_acked || !TAKE(r, "\x63" "err\xf6\x6enum_recipients")) return false;
    bool is_message = c == connections && first_id && id >= first_id;
    if (!is_message || requesting) {
        if (!TAKE(r, "\xf6")) return false;
    } else if (take_number(r) != (uint32_t)receivers) return false;
    if (is_message) acked++, arrived(id - first_id);
    return r->at == r->end;
}

static bool on_delivery(Connection *c, Reader *r, uint32_t id)
{
    set_digits(message.bytes + message_digits, c->next);
    if (c == connections || !take(r, message.bytes, message.length)) return false;
    if (requesting) send_response(c, id, c->next);
    else arrived(c->next);
    c->next++;
    return r->at == r->end;
}

static bool on_response(Connection *c, Reader *r)
{
    uint32_t id = take_number(r);
    set_digits(response.bytes + response_digits, c->next);
    if (c != connections || id != first_id + c->next || c->next >= acked) return false;
    if (!take(r, response.bytes, response.length)) return false;
    arrived(c->next++);
    return r->at == r->end;
}

static void on_frame(Connection *c, const uint8_t *bytes, size_t length)
{
    Reader r = {bytes, bytes + length, bytes};
    bool good = TAKE(&r, "\xa2\x62id");
    uint32_t id = good ? take_number(&r) : 0;
    good = good && TAKE(&r, "\x67" "content");
    if (good && TAKE(&r, "\xa1\x63" "Ack\xa3\x66msg_id")) good = on_ack(c, &r);
    else if (good && TAKE(&r, "\xa1\x63Rsp\xa3\x66req_id")) good = on_response(c, &r);
    else good = good && on_delivery(c, &r, id);
    if (!good) fail("not the frame that comes next", bytes, length);
}

static void receive(Connection *c)
{
    ssize_t n = read(c->fd, c->in + c->in_length, INPUT_BYTES - c->in_length);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) fail("the server closed a connection", NULL, 0);
    c->in_length += (size_t)n;
    size_t at = 0;
    while (c->in_length - at >= 4) {
        uint32_t length;
        memcpy(&length, c->in + at, 4);
        length = ntohl(length);
        if (length > FRAME_LIMIT) fail("a frame over the limit", c->in + at, c->in_length - at);
        if (c->in_length - at - 4 < length) break;
        on_frame(c, c->in + at + 4, length);
        at += 4 + length;
    }
    memmove(c->in, c->in + at, c->in_length -= at);
}

/* ---------------------------------------------------------------- the run */

/* Real clients leave Nagle's algorithm on, so it stays on here. */
static void open_connection(const char *address)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in remote = {.sin_family = AF_INET};
    bool is_unix = !strncmp(address, "unix:", 5);
    const char *place = strchr(address, ':') + 1;
    const struct sockaddr *to = is_unix ? (void *)&local : (void *)&remote;
    socklen_t size = is_unix ? sizeof local : sizeof remote;
    if (is_unix) strncpy(local.sun_path, place, sizeof local.sun_path - 1);
    else {
        char host[64] = "";
        const char *port = strrchr(place, ':');
        if (!port || port - place >= (long)sizeof host) fail("no such address", NULL, 0);
        memcpy(host, place, (size_t)(port - place));
        remote.sin_port = htons((uint16_t)atoi(port + 1));
        if (inet_pton(AF_INET, host, &remote.sin_addr) != 1) fail("no such address", NULL, 0);
    }
    Connection *c = &connections[connection_count++];
    c->fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, to, size)) fail(strerror(errno), NULL, 0);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->in = malloc(INPUT_BYTES);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

static void turn(void)
{
    struct epoll_event events[MAX_CONNECTIONS];
    int n = epoll_wait(poller, events, MAX_CONNECTIONS, 10);
    now = seconds();
    for (int i = 0; i < n; i++)
        if (events[i].events & ~(uint32_t)EPOLLOUT) receive(events[i].data.ptr);
    for (int i = 0; i < connection_count; i++) flush(&connections[i]);
}

/* As with the real client, a publication is in flight until its Ack, a request until its reply. */
static bool may_send(void)
{
    uint64_t in_flight = started - (requesting ? completed : acked);
    return in_flight < in_flight_limit && started - completed < SLOTS;
}

static void run_until(double deadline)
{
    while (now < deadline) {
        while (may_send()) send_message(&connections[0]);
        flush(&connections[0]);
        turn();
    }
}

static bool all_acked(void)
{
    for (int i = 0; i < connection_count; i++)
        if (connections[i].last_acked != connections[i].last_id) return false;
    return true;
}

/* Seconds on a processor of all threads of the server; the ones of t2 live as long as it does. */
static double server_cpu(const char *pid)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks) fail("no such server process", NULL, 0);
    double total = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/%s/task/%.20s/schedstat", pid, task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &ns) == 1) total += (double)ns * 1e-9;
        fclose(file);
    }
    closedir(tasks);
    return total;
}

static double own_cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void build_templates(bool gzip)
{
    static uint8_t data[FRAME_LIMIT];
    size_t length = fread(data, 1, sizeof data, stdin);
    if (length < DIGITS) fail("the payload is too short for the sequence number", NULL, 0);
    put(&message, requesting ? "\xa1\x63Req\xa2" : "\xa1\x63Pub\xa2", 6);
    put_text(&message, "topic");
    put_text(&message, TOPIC);
    message_digits = put_payload(&message, data, length, gzip);
    put_text(&response, "status");
    put_text(&response, "Ok");
    response_digits = put_payload(&response, data, length, gzip);
}

int main(int count, char **arguments)
{
    if (count != 8) fail("ADDRESS publish|request IN_FLIGHT RECEIVERS plain|gzip SECONDS PID", NULL, 0);
    requesting = !strcmp(arguments[2], "request");
    in_flight_limit = (uint64_t)atoi(arguments[3]);
    receivers = atoi(arguments[4]);
    const double duration = atof(arguments[6]);
    const char *pid = arguments[7];
    if (in_flight_limit < 1 || in_flight_limit > SLOTS || receivers < 1 ||
        receivers >= MAX_CONNECTIONS || (requesting && receivers != 1))
        fail("IN_FLIGHT or RECEIVERS out of range", NULL, 0);
    build_templates(!strcmp(arguments[5], "gzip"));

    poller = epoll_create1(0);
    for (int i = 0; i <= receivers; i++) open_connection(arguments[1]);
    for (int i = 0; i <= receivers; i++) {
        send_simple(&connections[i], "KeepAlive", NULL);
        if (i) send_simple(&connections[i], requesting ? "Srv" : "Sub", TOPIC);
        flush(&connections[i]);
    }
    now = seconds();
    for (double deadline = now + DRAIN_S; !all_acked() && now < deadline;) turn();
    if (!all_acked()) fail("no Ack to the first messages", NULL, 0);
    first_id = connections[0].last_id + 1;

    run_until(now + WARM_UP_S);
    double start = now, server = server_cpu(pid), own = own_cpu();
    measuring = true;
    run_until(start + duration);
    measuring = false;
    double took = now - start;
    server = server_cpu(pid) - server;
    own = own_cpu() - own;

    double deadline = now + DRAIN_S;
    while ((completed < started || !all_acked()) && now < deadline) turn();
    qsort(latencies, measured, sizeof *latencies, by_value);
    double p50 = measured ? latencies[measured / 2] : 0;
    double p99 = measured ? latencies[measured * 99 / 100] : 0;
    printf("{\"messages\": %lu, \"seconds\": %.6f, \"server_cpu_s\": %.6f, \"own_cpu_s\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"sent\": %lu, \"lost\": %lu}\n",
           (unsigned long)measured, took, server, own, p50, p99, (unsigned long)started,
           (unsigned long)(started - completed));
    return 0;
}
