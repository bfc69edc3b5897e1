/* The least that answering consumes costs: floor PORT
 *
 * One thread that reads requests without a body and answers each with a message of 1 KiB from memory under its id. It keeps no
 * topic, no group and no log, so no server of one thread is faster on the same machine under the same load.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static char in[1 << 16], out[1 << 20];

static size_t answer(char *to, const char *id, const char *body) {
    return sprintf(to,
                   "HTTP/1.1 200 OK\r\ntopic: Floor\r\nversion: 0.8.0\r\nconnection: Keep-Alive\r\n"
                   "content-type: text/plain; charset=utf-8\r\nsender: 00000000-0000-0000-0000-000000000000\r\n"
                   "host: 127.0.0.1:15555\r\nremote-addr: /127.0.0.1:40000\r\noffset: 100\r\nid: %.36s\r\n"
                   "origin_id: 00000000-0000-0000-0000-000000000001\r\ncontent-length: 1024\r\n\r\n%s",
                   id, body);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    static char body[1025];
    memset(body, 'x', 1024);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 64)) return 1;
    int ep = epoll_create1(0);
    struct epoll_event events[64], e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int n = epoll_wait(ep, events, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                e.data.fd = accept(listener, NULL, NULL);
                setsockopt(e.data.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                epoll_ctl(ep, EPOLL_CTL_ADD, e.data.fd, &e);
                continue;
            }
            // The load has one consume waiting per connection, so a read brings whole requests.
            ssize_t size = read(fd, in, sizeof in);
            if (size <= 0) {
                close(fd);
                continue;
            }
            size_t used = 0;
            for (char *at = in, *end; (end = memmem(at, in + size - at, "\r\n\r\n", 4)); at = end + 4) {
                char *id = memmem(at, end - at, "\r\nid: ", 6);
                if (id) used += answer(out + used, id + 6, body);
            }
            if (write(fd, out, used) < 0) close(fd);
        }
    }
}
