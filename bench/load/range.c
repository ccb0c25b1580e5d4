/* What Redis and NATS keep, read back in bulk as each does it fastest, without acks. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "modes.h"
#include "speech.h"
#include "xread.h"

#define IN_BYTES (1 << 20)
/* Fetches that a server has ahead, so that it never waits for the next one. */
#define FETCHES 2

static void read_redis(int fd)
{
    struct xread x = xread_open(fd, opt.batch);
    for (long got = 0; got < opt.count;)
        got += xread_next(&x, NULL);
}

/* Each run is a consumer of its own, which begins with the first message. Its creation is answered like a publish. */
static void nats_consumer(int fd)
{
    char config[1024], line[2048];
    int size = sprintf(config,
                       "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"reader%d\",\"ack_policy\":\"none\","
                       "\"deliver_policy\":\"all\",\"mem_storage\":true,\"max_waiting\":%d}}",
                       opt.topic, getpid(), 4 * FETCHES);
    int whole = sprintf(line, "PUB $JS.API.CONSUMER.DURABLE.CREATE.%s.reader%d _INBOX.b %d\r\n%s\r\n", opt.topic,
                        getpid(), size, config);
    send_all(fd, line, (size_t)whole);
    await_reply(fd);
}

static long nats_fetch(int fd, long messages)
{
    char wish[64], line[512];
    int size = sprintf(wish, "{\"batch\":%ld}", messages);
    int whole = sprintf(line, "PUB $JS.API.CONSUMER.MSG.NEXT.%s.reader%d _INBOX.b %d\r\n%s\r\n", opt.topic, getpid(),
                        size, wish);
    send_all(fd, line, (size_t)whole);
    return messages;
}

static void read_nats(int fd)
{
    char *in = malloc(IN_BYTES);
    size_t fill = 0;
    for (long got = 0, asked = 0; got < opt.count;) {
        while (asked < opt.count && asked - got <= (FETCHES - 1) * opt.batch)
            asked += nats_fetch(fd, opt.batch < opt.count - asked ? opt.batch : opt.count - asked);
        fill += receive(fd, in + fill, IN_BYTES - fill);
        size_t used = speech->scan(in, fill, &got);
        memmove(in, in + used, fill -= used);
    }
}

void mode_read(void)
{
    int is_nats = !strcmp(opt.dialect, "nats"), fd = greeted();
    if (!is_nats && strcmp(opt.dialect, "redis"))
        die("%s is not read in bulk", opt.dialect);
    if (is_nats)
        nats_consumer(fd);
    int64_t start_ns = now_ns();
    (is_nats ? read_nats : read_redis)(fd);
    printf("\"messages\":%ld,\"seconds\":%.6f", opt.count, seconds_since(start_ns));
}
