/* Load generator: calls or broadcasts through a Golem Service Bus router, from one thread with prebuilt frames.
 *
 * load PORT PID calls|broadcast SIZE WINDOW PEERS SECONDS
 *
 * One connection keeps WINDOW requests in flight: calls to PEERS services in turn (each another connection of this
 * process, which answers with SIZE bytes as well), or broadcasts to PEERS subscribers. Every byte that comes back is
 * compared with what must come: a wrong frame, an unknown id, a broadcast out of order stops the run. The result is
 * one line of JSON; the CPU times are those of the measured seconds, of the router (PID, all threads) and of this process.
 */
#include "wire.h"
#include <dirent.h>
#include <sys/random.h>
#include <time.h>

enum { ID = 16, MAX_PEERS = 64, MAX_WINDOW = 1 << 16, MINOR = 32, BUCKETS = 64 * MINOR };
#define WARM_UP_NS 150000000u
#define DRAIN_NS 1000000000u

struct template {
    struct buffer bytes;
    size_t id; /* offset of the ID digits that differ from frame to frame */
};

struct peer {
    int fd;
    struct buffer in, out;
    uint64_t next; /* subscriber: the number expected next */
    bool watched_for_write;
};

static const char CALLER[] = "local";
static struct template request[MAX_PEERS], reply;
static struct peer asker, peers[MAX_PEERS];
static uint64_t sent_at[MAX_WINDOW];    /* by slot (calls) or by number (broadcasts), ns */
static uint64_t generation[MAX_WINDOW]; /* calls: the id a slot waits for is generation * window + slot */
static uint64_t histogram[BUCKETS];
static uint64_t issued, answered, failed, delivered, lost;
static size_t window, fanout;
static bool broadcasting, stopping;
static uint64_t now;
static int epoll;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- latency: buckets of 1/32 of a power of two */

static void record(uint64_t ns)
{
    unsigned major = ns < MINOR ? 0 : 63u - (unsigned)__builtin_clzll(ns) - 4u;
    histogram[major * MINOR + (major ? (ns >> (major - 1)) % MINOR : ns)]++;
}

static double percentile_us(double share)
{
    uint64_t total = 0, seen = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        total += histogram[i];
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen && (double)seen >= share * (double)total) {
            size_t major = i / MINOR, minor = i % MINOR;
            return (double)(major ? (MINOR + minor) << (major - 1) : minor) / 1e3;
        }
    }
    return 0;
}

/* ---- CPU time of the router, summed over its threads */

static uint64_t router_cpu_ns(int pid)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        fail("the router (%d) is gone", pid);
    uint64_t total = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file && fscanf(file, "%llu", &ns) == 1)
            total += ns;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return total;
}

/* ---- frames */

static void put_id(uint8_t *at, uint64_t number)
{
    for (int i = ID - 1; i >= 0; i--, number /= 10)
        at[i] = (uint8_t)('0' + number % 10);
}

static uint64_t get_id(const uint8_t *at)
{
    uint64_t number = 0;
    for (int i = 0; i < ID; i++)
        number = number * 10 + (uint64_t)(at[i] - '0');
    return number;
}

static struct template finish(uint8_t kind, struct buffer *message)
{
    static const char digits[] = "0123456789ABCDEF";
    struct template made = {.bytes = frame(kind, message)};
    uint8_t *id = memmem(made.bytes.data, made.bytes.end, digits, ID);
    if (!id)
        fail("a template without an id");
    made.id = (size_t)(id - made.bytes.data);
    free(message->data);
    return made;
}

static void build_templates(size_t size)
{
    uint8_t *data = malloc(size + ID);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 37 + 11);
    for (size_t i = 0; i < fanout && !broadcasting; i++) {
        char address[64];
        struct buffer message = {0};
        put_field(&message, 0x0a, CALLER, strlen(CALLER));
        put_field(&message, 0x12, address, (size_t)sprintf(address, "/public/bench/%zu/Echo", i));
        put_field(&message, 0x1a, "0123456789ABCDEF", ID);
        put_field(&message, 0x22, data, size);
        request[i] = finish(CALL, &message);
    }
    struct buffer message = {0};
    if (broadcasting) {
        memcpy(data, "0123456789ABCDEF", ID);
        put_field(&message, 0x0a, CALLER, strlen(CALLER));
        put_field(&message, 0x12, data, size);
        put_field(&message, 0x1a, "bench", 5);
        request[0] = finish(BROADCAST, &message);
    } else {
        put_field(&message, 0x0a, "0123456789ABCDEF", ID);
        put_field(&message, 0x22, data, size);
        reply = finish(REPLY, &message);
    }
    free(data);
}

static void emit(struct peer *to, const struct template *from, uint64_t id)
{
    uint8_t *at = reserve(&to->out, from->bytes.end);
    memcpy(at, from->bytes.data, from->bytes.end);
    put_id(at + from->id, id);
    to->out.end += from->bytes.end;
}

static bool matches(const struct template *expected, const uint8_t *bytes, size_t size)
{
    const uint8_t *wanted = expected->bytes.data;
    size_t rest = expected->id + ID;
    return size == expected->bytes.end && !memcmp(bytes, wanted, expected->id) &&
           !memcmp(bytes + rest, wanted + rest, size - rest);
}

/* ---- the parties */

static void ask(size_t slot)
{
    uint64_t id = broadcasting ? issued : generation[slot] * window + slot;
    sent_at[broadcasting ? id % MAX_WINDOW : slot] = now;
    emit(&asker, &request[broadcasting ? 0 : id % fanout], id);
    issued++;
}

static void asker_got(const uint8_t *bytes, size_t size)
{
    if (broadcasting) {
        if (size != 6 || bytes[4] != BROADCASTED || bytes[5])
            fail("a broadcast was refused");
        answered++;
        if (!stopping)
            ask(0);
        return;
    }
    /* A reply of the router itself has another length but the same start: tag, varint, 0a 10, id. */
    const uint8_t *id = bytes + 5;
    if (bytes[4] != REPLY)
        fail("the caller got a packet of kind %d", bytes[4] >> 3);
    get_varint(&id, bytes + size);
    if (id + 2 + ID > bytes + size || id[0] != 0x0a || id[1] != ID)
        fail("a reply without an id");
    uint64_t number = get_id(id + 2);
    size_t slot = (size_t)(number % window);
    if (number / window != generation[slot])
        fail("a reply to a call that is not in flight");
    if (matches(&reply, bytes, size))
        record(now - sent_at[slot]);
    else if (id + 2 + ID < bytes + size && id[2 + ID] == 0x10)
        failed++;
    else
        fail("a reply came changed");
    answered++;
    generation[slot]++;
    if (!stopping)
        ask(slot);
}

static void service_got(size_t i, const uint8_t *bytes, size_t size)
{
    if (!matches(&request[i], bytes, size))
        fail("service %zu got a changed call", i);
    emit(&peers[i], &reply, get_id(bytes + request[i].id));
}

static void subscriber_got(struct peer *self, const uint8_t *bytes, size_t size)
{
    if (!matches(&request[0], bytes, size))
        fail("a subscriber got a changed broadcast");
    uint64_t number = get_id(bytes + request[0].id);
    if (number < self->next || number >= issued)
        fail("a broadcast came twice or out of order");
    lost += number - self->next;
    self->next = number + 1;
    delivered++;
    record(now - sent_at[number % MAX_WINDOW]);
}

static void handle(struct peer *peer)
{
    if (!receive(peer->fd, &peer->in))
        fail("the router closed a connection");
    now = clock_ns(CLOCK_MONOTONIC);
    for (size_t size; (size = whole_frame(&peer->in)); peer->in.start += size) {
        const uint8_t *bytes = peer->in.data + peer->in.start;
        if (bytes[4] == HELLO)
            continue;
        if (bytes[4] == PING)
            append(&peer->out, "\0\0\0\2\x7a", 6);
        else if (peer == &asker)
            asker_got(bytes, size);
        else if (broadcasting)
            subscriber_got(peer, bytes, size);
        else
            service_got((size_t)(peer - peers), bytes, size);
    }
}

/* One write per connection for all that the last events gave rise to. */
static void flush(struct peer *peer)
{
    if (peer->out.start < peer->out.end)
        send_some(peer->fd, &peer->out);
    bool waiting = peer->out.start < peer->out.end;
    if (waiting != peer->watched_for_write)
        watch(epoll, EPOLL_CTL_MOD, peer->fd, peer, peer->watched_for_write = waiting);
}

static void turn(int timeout_ms)
{
    struct epoll_event events[MAX_PEERS + 1];
    int n = epoll_wait(epoll, events, MAX_PEERS + 1, timeout_ms);
    for (int i = 0; i < n; i++)
        if (events[i].events & ~(unsigned)EPOLLOUT)
            handle(events[i].data.ptr);
    now = clock_ns(CLOCK_MONOTONIC);
    flush(&asker);
    for (size_t i = 0; i < fanout; i++)
        flush(&peers[i]);
}

/* Connects, says Hello, and registers or subscribes when there is a name; waits for the answer. */
static void join(struct peer *peer, int port, uint8_t kind, const char *name)
{
    struct sockaddr_in address = loopback(port);
    struct buffer message = {0}, hello, wish;
    uint8_t instance[16];
    peer->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(peer->fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect: %s", strerror(errno));
    no_delay(peer->fd);
    if (getrandom(instance, sizeof instance, 0) != sizeof instance)
        fail("no random bytes");
    put_field(&message, 0x0a, "bench", 5);
    put_field(&message, 0x1a, instance, sizeof instance);
    hello = frame(HELLO, &message);
    append(&peer->out, hello.data, hello.end);
    if (name) {
        message.end = 0;
        put_field(&message, 0x0a, name, strlen(name));
        wish = frame(kind, &message);
        append(&peer->out, wish.data, wish.end);
    }
    for (bool waiting = true; waiting;) {
        if (peer->out.start < peer->out.end)
            send_some(peer->fd, &peer->out);
        if (!receive(peer->fd, &peer->in))
            fail("the router closed a connection");
        for (size_t size; (size = whole_frame(&peer->in)); peer->in.start += size) {
            const uint8_t *bytes = peer->in.data + peer->in.start;
            if (bytes[4] != HELLO && (bytes[4] != kind + 8 || bytes[5]))
                fail("the router refused %s", name);
            waiting = waiting && name && bytes[4] == HELLO;
        }
    }
    watch(epoll, EPOLL_CTL_ADD, peer->fd, peer, false);
}

static void run_until(uint64_t deadline)
{
    while (now < deadline)
        turn(10);
}

/* Waits for what is still under way; what does not come within DRAIN_NS of the last arrival is lost. */
static void drain(void)
{
    uint64_t all = broadcasting ? issued * fanout : issued, before = 0, since = now;
    stopping = true;
    for (;;) {
        uint64_t come = broadcasting ? delivered + lost : answered;
        if ((come == all && answered == issued) || now - since > DRAIN_NS)
            break;
        if (come != before)
            before = come, since = now;
        turn(10);
    }
    lost = broadcasting ? all - delivered : all - answered;
}

int main(int count, char **argument)
{
    if (count != 8)
        fail("usage: load PORT PID calls|broadcast SIZE WINDOW PEERS SECONDS");
    int port = atoi(argument[1]), pid = atoi(argument[2]);
    broadcasting = !strcmp(argument[3], "broadcast");
    size_t size = (size_t)atol(argument[4]);
    window = (size_t)atol(argument[5]);
    fanout = (size_t)atol(argument[6]);
    uint64_t length = (uint64_t)(atof(argument[7]) * 1e9);
    if (!window || window > MAX_WINDOW || !fanout || fanout > MAX_PEERS || size < ID)
        fail("out of range: 1..%d in flight, 1..%d peers, %d bytes or more", MAX_WINDOW, MAX_PEERS, ID);

    epoll = epoll_create1(0);
    build_templates(size);
    for (size_t i = 0; i < fanout; i++) {
        char name[64];
        sprintf(name, "/public/bench/%zu/Echo", i);
        join(&peers[i], port, broadcasting ? SUBSCRIBE : REGISTER, broadcasting ? "bench" : name);
    }
    join(&asker, port, HELLO, NULL);

    now = clock_ns(CLOCK_MONOTONIC);
    for (size_t slot = 0; slot < window; slot++)
        ask(slot);
    flush(&asker);
    run_until(now + WARM_UP_NS);
    memset(histogram, 0, sizeof histogram);
    uint64_t begin = now, router = router_cpu_ns(pid), own = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t done = broadcasting ? delivered : answered - failed;
    run_until(begin + length);
    router = router_cpu_ns(pid) - router;
    own = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own;
    done = (broadcasting ? delivered : answered - failed) - done;
    double seconds = (double)(now - begin) / 1e9, p50 = percentile_us(0.5), p99 = percentile_us(0.99);
    drain();
    printf("{\"done\": %llu, \"seconds\": %.6f, \"router_cpu_s\": %.6f, \"load_cpu_s\": %.6f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"issued\": %llu, \"failed\": %llu, \"lost\": %llu}\n",
           (unsigned long long)done, seconds, (double)router / 1e9, (double)own / 1e9, p50, p99,
           (unsigned long long)(broadcasting ? issued * fanout : issued), (unsigned long long)failed,
           (unsigned long long)lost);
    return 0;
}
