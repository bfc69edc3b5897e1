/* The floor: the least a Golem Service Bus router can do. One thread, epoll, frames scanned and forwarded verbatim, one
 * read and one write per connection and batch.
 *
 * It keeps names, topics and pending calls as a router must, and leaves out what costs little and matters much: limits,
 * pings, timeouts, checks of UTF-8, take-over. It trusts its peers and is no router to use.
 */
#include "wire.h"

enum { MAX_NAMES = 256, MAX_NAME = 128, MAX_ID = 32, SLOTS = 1 << 14, EVENTS = 64 };

struct connection {
    int fd;
    struct buffer in, out;
    bool dirty, watched_for_write, gone;
    struct connection *next_dirty, *next_gone;
};

struct entry { /* a registered name, or one subscription */
    struct connection *owner;
    uint8_t kind;
    size_t size;
    uint8_t name[MAX_NAME];
};

struct call {
    struct call *next;
    struct connection *service, *caller;
    size_t size;
    uint8_t id[MAX_ID];
};

struct span {
    const uint8_t *at;
    size_t size;
};

static struct entry entries[MAX_NAMES];
static size_t used;
static struct call *calls[SLOTS], *spare;
static struct connection *dirty, *gone;
static int epoll;

static void mark(struct connection *to)
{
    if (!to->dirty) {
        to->dirty = true;
        to->next_dirty = dirty;
        dirty = to;
    }
}

static void send_to(struct connection *to, const void *bytes, size_t size)
{
    append(&to->out, bytes, size);
    mark(to);
}

/* The bytes of a string or bytes field of the message at [at, end); empty if it is left out. */
static struct span field(const uint8_t *at, const uint8_t *end, unsigned number)
{
    while (at < end) {
        uint8_t tag = *at++;
        size_t value = get_varint(&at, end);
        if ((tag & 7) == 0)
            continue;
        if ((tag & 7) != 2 || value > (size_t)(end - at))
            fail("malformed message");
        if (tag >> 3 == number)
            return (struct span){at, value};
        at += value;
    }
    return (struct span){at, 0};
}

static bool is_flag_set(const uint8_t *at, const uint8_t *end, uint8_t wanted)
{
    while (at < end) {
        uint8_t tag = *at++;
        size_t value = get_varint(&at, end);
        if (tag == wanted)
            return value;
        if ((tag & 7) == 2)
            at += value;
    }
    return false;
}

static struct entry *find(uint8_t kind, struct span name)
{
    for (size_t i = 0; i < used; i++)
        if (entries[i].kind == kind && entries[i].size == name.size && !memcmp(entries[i].name, name.at, name.size))
            return &entries[i];
    return NULL;
}

static struct connection *route(struct span address)
{
    while (address.size) {
        struct entry *found = find(REGISTER, address);
        if (found)
            return found->owner;
        while (--address.size && address.at[address.size] != '/')
            ;
    }
    return NULL;
}

static void enter(uint8_t kind, struct connection *owner, struct span name)
{
    if (used == MAX_NAMES || name.size > MAX_NAME)
        fail("more or longer names than a benchmark has");
    if (kind == REGISTER && find(kind, name))
        fail("a name was registered twice");
    struct entry *entry = &entries[used++];
    *entry = (struct entry){.owner = owner, .kind = kind, .size = name.size};
    memcpy(entry->name, name.at, name.size);
}

/* ---- calls in flight, by service and id */

static struct call **slot(const struct connection *service, struct span id)
{
    uint64_t hash = 14695981039346656037u ^ (uint64_t)(uintptr_t)service;
    for (size_t i = 0; i < id.size; i++)
        hash = (hash ^ id.at[i]) * 1099511628211u;
    return &calls[(hash ^ hash >> 32) % SLOTS];
}

static void remember(struct connection *service, struct connection *caller, struct span id)
{
    struct call **head = slot(service, id), *call = spare;
    if (id.size > MAX_ID)
        fail("a longer id than a benchmark has");
    if (call)
        spare = call->next;
    else
        call = malloc(sizeof *call);
    *call = (struct call){.next = *head, .service = service, .caller = caller, .size = id.size};
    memcpy(call->id, id.at, id.size);
    *head = call;
}

static struct call **pending(struct connection *service, struct span id)
{
    struct call **at = slot(service, id);
    while (*at && !((*at)->service == service && (*at)->size == id.size && !memcmp((*at)->id, id.at, id.size)))
        at = &(*at)->next;
    return at;
}

static void forget(struct call **at)
{
    struct call *call = *at;
    *at = call->next;
    call->next = spare;
    spare = call;
}

/* ---- packets */

static void refuse(struct connection *caller, struct span id)
{
    static const char text[] = "endpoint address not found";
    struct buffer message = {0};
    put_field(&message, 0x0a, id.at, id.size);
    append(&message, "\x10\x90\x03", 3);
    put_field(&message, 0x22, text, strlen(text));
    struct buffer reply = frame(REPLY, &message);
    send_to(caller, reply.data, reply.end);
    free(message.data);
    free(reply.data);
}

static void take(struct connection *from, const uint8_t *bytes, size_t size)
{
    const uint8_t *at = bytes + 5, *end = bytes + size;
    uint8_t kind = bytes[4];
    if (get_varint(&at, end) != (size_t)(end - at))
        fail("a packet with more than one message");
    if (kind == CALL) {
        struct span id = field(at, end, 3);
        struct connection *service = route(field(at, end, 2));
        bool no_reply = is_flag_set(at, end, 0x28);
        if (service && !no_reply)
            remember(service, from, id);
        if (service)
            send_to(service, bytes, size);
        else if (!no_reply)
            refuse(from, id);
    } else if (kind == REPLY) {
        struct call **call = pending(from, field(at, end, 1));
        if (*call) {
            send_to((*call)->caller, bytes, size);
            if (!is_flag_set(at, end, 0x18))
                forget(call);
        }
    } else if (kind == BROADCAST) {
        struct span topic = field(at, end, 3);
        for (size_t i = 0; i < used; i++)
            if (entries[i].kind == SUBSCRIBE && entries[i].size == topic.size &&
                !memcmp(entries[i].name, topic.at, topic.size))
                send_to(entries[i].owner, bytes, size);
        send_to(from, "\0\0\0\2\x6a", 6);
    } else if (kind == REGISTER || kind == SUBSCRIBE) {
        enter(kind, from, field(at, end, 1));
        send_to(from, kind == REGISTER ? "\0\0\0\2\x1a" : "\0\0\0\2\x4a", 6);
    } else if (kind == HELLO) {
        send_to(from, "\0\0\0\2\x0a", 6);
    } else if (kind != PONG) {
        fail("a packet of kind %d, which no benchmark sends", kind >> 3);
    }
}

static void leave(struct connection *connection)
{
    size_t kept = 0;
    for (size_t i = 0; i < used; i++)
        if (entries[i].owner != connection)
            entries[kept++] = entries[i];
    used = kept;
    for (size_t i = 0; i < SLOTS; i++)
        for (struct call **at = &calls[i]; *at;)
            if ((*at)->service == connection || (*at)->caller == connection)
                forget(at);
            else
                at = &(*at)->next;
    close(connection->fd);
    connection->gone = true;
    connection->next_gone = gone;
    gone = connection;
}

static void flush(struct connection *to)
{
    to->dirty = false;
    if (to->gone)
        return;
    send_some(to->fd, &to->out);
    bool waiting = to->out.start < to->out.end;
    if (waiting != to->watched_for_write)
        watch(epoll, EPOLL_CTL_MOD, to->fd, to, to->watched_for_write = waiting);
}

static void turn(int listener)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, -1);
    for (int i = 0; i < n; i++) {
        struct connection *from = events[i].data.ptr;
        if (!from) {
            from = calloc(1, sizeof *from);
            from->fd = accept4(listener, NULL, NULL, 0);
            no_delay(from->fd);
            watch(epoll, EPOLL_CTL_ADD, from->fd, from, false);
            continue;
        }
        if (events[i].events & EPOLLOUT)
            mark(from);
        if (!(events[i].events & ~(unsigned)EPOLLOUT))
            continue;
        if (!receive(from->fd, &from->in)) {
            leave(from);
            continue;
        }
        for (size_t size; (size = whole_frame(&from->in)); from->in.start += size)
            take(from, from->in.data + from->in.start, size);
    }
    for (; dirty; dirty = dirty->next_dirty)
        flush(dirty);
    /* Only now: an event or a dirty mark of this batch may still have named them. */
    while (gone) {
        struct connection *last = gone;
        gone = last->next_gone;
        free(last->in.data);
        free(last->out.data);
        free(last);
    }
}

int main(void)
{
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 1024) < 0)
        fail("cannot listen: %s", strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &size);
    epoll = epoll_create1(0);
    watch(epoll, EPOLL_CTL_ADD, listener, NULL, false);
    printf("listening tcp://127.0.0.1:%d\nready\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;)
        turn(listener);
}
