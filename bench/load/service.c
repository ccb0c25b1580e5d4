/* A consumer service of M3Msg: takes every connection, acks all it gets, and ends after `count` messages. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "modes.h"
#include "net.h"

#define CONNECTIONS 64
#define ROOM (1 << 20)
#define STALL_MS 60000

struct line {
    char *in;
    size_t have;
};

/* Ack every whole frame: an entry of an Ack is the head of a Message as it came. */
static long take(int fd, struct line *line, char *out)
{
    size_t at = 0, size = 4;
    long messages = 0;
    while (line->have - at >= 4) {
        uint32_t head;
        memcpy(&head, line->in + at, 4);
        size_t body = ntohl(head);
        if (line->have - at < 4 + body)
            break;
        const char *message = line->in + at + 4;
        size_t entry = 2 + (size_t)(unsigned char)message[1];
        if (message[0] != 0x0a || entry > body)
            die("what came is no Message");
        memcpy(out + size, message, entry);
        size += entry;
        at += 4 + body;
        messages++;
    }
    if (messages) {
        uint32_t head = htonl((uint32_t)(size - 4));
        memcpy(out, &head, 4);
        send_all(fd, out, size);
    }
    memmove(line->in, line->in + at, line->have -= at);
    return messages;
}

void mode_service(void)
{
    struct epoll_event events[CONNECTIONS];
    static struct line lines[1024];
    char *out = malloc(ROOM);
    int poller = epoll_create1(0), listener = listen_on();
    struct epoll_event event = {EPOLLIN, {.fd = listener}};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    int64_t first_ns = 0;
    long got = 0;
    while (got < opt.count) {
        int ready = epoll_wait(poller, events, CONNECTIONS, STALL_MS);
        if (ready <= 0)
            die("stalled after %ld of %ld messages", got, opt.count);
        for (int e = 0; e < ready; e++) {
            int fd = events[e].data.fd;
            if (fd == listener) {
                event.data.fd = accept(listener, NULL, NULL);
                if (event.data.fd >= 1024)
                    die("too many connections");
                if (!lines[event.data.fd].in)
                    lines[event.data.fd].in = malloc(ROOM);
                epoll_ctl(poller, EPOLL_CTL_ADD, event.data.fd, &event);
                continue;
            }
            struct line *line = &lines[fd];
            ssize_t some = recv(fd, line->in + line->have, ROOM - line->have, 0);
            if (some <= 0) {
                close(fd);
                line->have = 0;
                continue;
            }
            if (!first_ns)
                first_ns = now_ns();
            line->have += (size_t)some;
            got += take(fd, line, out);
        }
    }
    printf("\"messages\":%ld,\"seconds\":%.6f,\"ended_at\":%.6f", got, seconds_since(first_ns), (double)now_ns() / 1e9);
}
