#define _GNU_SOURCE
#include "dory.h"

#include <stdio.h>

#include "modes.h"

int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct dory_sender opened(int (*open)(struct dory_sender *, const char *))
{
    struct dory_sender sender;
    if (open(&sender, opt.path))
        die("no connection to %s: %s", opt.path, strerror(errno));
    return sender;
}

struct dory_sender datagrams_open(void) { return opened(dory_open_datagram); }

void datagram(struct dory_sender *to, const struct block *from, long number)
{
    const char *end = from->bytes + ((size_t)number % from->units + 1) * from->unit_bytes;
    if (dory_send(to, opt.topic, NULL, 0, end - opt.size, (size_t)opt.size))
        die("send: %s", strerror(errno));
}

/* Nothing comes back: whoever asked the node until it has all of them needs to know when the clock started. */
static void print_sent(int64_t start_ns, int64_t spent_ns)
{
    printf("\"messages\":%ld,\"seconds\":%.6f,\"first_at\":%.6f,\"cpu_us\":%.4f", opt.count, seconds_since(start_ns),
           (double)start_ns / 1e9, (double)(thread_cpu_ns() - spent_ns) / 1e3 / (double)opt.count);
}

/* datagrams: `count` of them, one call each, as fast as they are taken. */
void mode_datagrams(void)
{
    struct dory_sender sender = datagrams_open();
    struct block block = block_make();
    int64_t start_ns = now_ns(), spent_ns = thread_cpu_ns();
    for (long i = 0; i < opt.count; i++)
        datagram(&sender, &block, i);
    print_sent(start_ns, spent_ns);
    dory_close(&sender);
}

/* stream: `count` messages on one connection, many to a write. */
void mode_stream(void)
{
    struct dory_sender sender = opened(dory_open_stream);
    struct block block = block_make();
    size_t left = (size_t)opt.count * block.unit_bytes, most = block.units * block.unit_bytes;
    int64_t start_ns = now_ns(), spent_ns = thread_cpu_ns();
    for (size_t some; left; left -= some)
        send_all(sender.socket, block.bytes, some = left < most ? left : most);
    print_sent(start_ns, spent_ns);
    dory_close(&sender);
}
