/* Byte buffers, varints and connections: what the load generator and the floor share.
 *
 * Both stop with a message on anything unexpected, since a benchmark that goes on after a fault measures nothing.
 */
#ifndef POLYBUS_BENCH_WIRE_H
#define POLYBUS_BENCH_WIRE_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Packet kinds (protocol page §2) as the tag byte that follows the length. */
enum { HELLO = 0x0a, REGISTER = 0x12, REGISTERED = 0x1a, CALL = 0x32, REPLY = 0x3a, SUBSCRIBE = 0x42,
       SUBSCRIBED = 0x4a, BROADCAST = 0x62, BROADCASTED = 0x6a, PING = 0x72, PONG = 0x7a };

enum { READ_SIZE = 1 << 20 };

struct buffer {
    uint8_t *data;
    size_t start, end, capacity; /* the bytes in use are [start, end) */
};

static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

/* Room for `more` bytes after the end. */
static inline uint8_t *reserve(struct buffer *buffer, size_t more)
{
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->end + more > buffer->capacity && buffer->start) {
        memmove(buffer->data, buffer->data + buffer->start, buffer->end - buffer->start);
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->end + more > buffer->capacity) {
        buffer->capacity = 2 * (buffer->end + more);
        buffer->data = realloc(buffer->data, buffer->capacity);
        if (!buffer->data)
            fail("out of memory");
    }
    return buffer->data + buffer->end;
}

static inline void append(struct buffer *buffer, const void *bytes, size_t size)
{
    memcpy(reserve(buffer, size), bytes, size);
    buffer->end += size;
}

/* Length of the frame at the start of the buffer with its header, or 0 if it is not complete yet. */
static inline size_t whole_frame(const struct buffer *buffer)
{
    size_t available = buffer->end - buffer->start;
    uint32_t length;
    if (available < 4)
        return 0;
    memcpy(&length, buffer->data + buffer->start, 4);
    size_t size = 4 + (size_t)ntohl(length);
    return available < size ? 0 : size;
}

static inline size_t put_varint(uint8_t *to, size_t value)
{
    size_t n = 0;
    for (; value > 127; value >>= 7)
        to[n++] = (uint8_t)(value | 128);
    to[n++] = (uint8_t)value;
    return n;
}

/* Moves *at past the varint and returns its value. */
static inline size_t get_varint(const uint8_t **at, const uint8_t *end)
{
    size_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (*at >= end)
            fail("varint beyond the frame");
        uint8_t byte = *(*at)++;
        value |= (size_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    fail("varint too long");
    return 0;
}

static inline void put_field(struct buffer *to, uint8_t tag, const void *bytes, size_t size)
{
    uint8_t head[11] = {tag};
    append(to, head, 1 + put_varint(head + 1, size));
    append(to, bytes, size);
}

/* One frame of the given kind around an encoded message. */
static inline struct buffer frame(uint8_t kind, const struct buffer *message)
{
    struct buffer packet = {0}, result = {0};
    put_field(&packet, kind, message->data, message->end);
    uint32_t length = htonl((uint32_t)packet.end);
    append(&result, &length, 4);
    append(&result, packet.data, packet.end);
    free(packet.data);
    return result;
}

/* One read of what is there. False at the end of the stream. */
static inline bool receive(int fd, struct buffer *into)
{
    ssize_t n = recv(fd, reserve(into, READ_SIZE), READ_SIZE, 0);
    if (n < 0 && errno != EAGAIN && errno != ECONNRESET)
        fail("recv: %s", strerror(errno));
    if (n > 0)
        into->end += (size_t)n;
    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* One write of all that waits; what the socket does not take stays. */
static inline void send_some(int fd, struct buffer *from)
{
    size_t size = from->end - from->start;
    ssize_t n = send(fd, from->data + from->start, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
        fail("send: %s", strerror(errno));
    if (n > 0)
        from->start += (size_t)n;
}

static inline struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void watch(int epoll, int operation, int fd, void *context, bool writable)
{
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = context};
    if (epoll_ctl(epoll, operation, fd, &event) < 0)
        fail("epoll_ctl: %s", strerror(errno));
}

#endif
