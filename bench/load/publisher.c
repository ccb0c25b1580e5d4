#define _GNU_SOURCE
#include "publisher.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IN_BYTES (256 << 10)
/* A server that neither takes nor answers anything for this long has lost something. */
#define STALL_MS 20000

struct publisher publisher_open(void)
{
    struct publisher p = {.fd = greeted(), .block = block_make(), .limit_bytes = SIZE_MAX, .in = malloc(IN_BYTES)};
    if (opt.count) {
        size_t units = (size_t)((opt.count + p.block.messages_per_unit - 1) / p.block.messages_per_unit);
        p.limit_bytes = units * p.block.unit_bytes;
    }
    set_nonblocking(p.fd);
    return p;
}

void publisher_start(struct publisher *p)
{
    p->start_ns = now_ns();
    p->end_ns = p->start_ns + (int64_t)(opt.seconds * 1e9);
}

static size_t whole_units(const struct publisher *p)
{
    return (p->sent_bytes + p->block.unit_bytes - 1) / p->block.unit_bytes;
}

/* How far it may write now: to the end, or a window ahead of the replies. */
static size_t horizon(struct publisher *p)
{
    if (p->limit_bytes == SIZE_MAX && now_ns() >= p->end_ns)
        p->limit_bytes = whole_units(p) * p->block.unit_bytes;
    size_t open = opt.window ? (size_t)(p->replies + opt.window) * p->block.unit_bytes : SIZE_MAX;
    return open < p->limit_bytes ? open : p->limit_bytes;
}

short publisher_wants(struct publisher *p)
{
    return (short)(POLLIN | (p->sent_bytes < horizon(p) ? POLLOUT : 0));
}

static void write_some(struct publisher *p)
{
    size_t block_bytes = p->block.units * p->block.unit_bytes, at = p->sent_bytes % block_bytes;
    size_t room = block_bytes - at, left = horizon(p) - p->sent_bytes;
    ssize_t sent = send(p->fd, p->block.bytes + at, left < room ? left : room, MSG_NOSIGNAL);
    if (sent > 0)
        p->sent_bytes += (size_t)sent;
    else if (errno != EAGAIN)
        die("send: %s", strerror(errno));
}

static void read_some(struct publisher *p)
{
    p->fill += receive(p->fd, p->in + p->fill, IN_BYTES - p->fill);
    size_t used = speech->scan(p->in, p->fill, &p->replies);
    p->fill -= used;
    memmove(p->in, p->in + used, p->fill);
}

void publisher_step(struct publisher *p, int readable, int writable)
{
    if (readable)
        read_some(p);
    if (writable && p->sent_bytes < horizon(p))
        write_some(p);
}

int publisher_done(struct publisher *p)
{
    horizon(p); /* time may have run out with nothing left to wait for */
    return p->sent_bytes == p->limit_bytes && (size_t)p->replies == whole_units(p);
}

long publisher_messages(const struct publisher *p) { return (long)whole_units(p) * p->block.messages_per_unit; }

void publisher_run(struct publisher *p)
{
    publisher_start(p);
    while (!publisher_done(p)) {
        struct pollfd ready = {p->fd, publisher_wants(p), 0};
        if (!poll(&ready, 1, STALL_MS))
            die("stalled with %ld replies to %zu publishes", p->replies, whole_units(p));
        publisher_step(p, ready.revents & (POLLIN | POLLHUP | POLLERR), ready.revents & POLLOUT);
    }
}
