#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "consumer.h"
#include "dory.h"
#include "modes.h"
#include "publisher.h"
#include "xread.h"

/* First allocations are no part of a steady rate, and neither is how long a server holds back the very last
 * messages: the load begins this much before what is measured and ends this much after it. */
#define WARM_UP_NS 300000000LL
#define COOL_DOWN_NS 300000000LL
#define NEIGHBOUR_PAUSE_US 1000
/* What falls due while the consumer looks may come this much later and is still counted, as late as it is. */
#define LATE_GRACE_SECONDS 3

static void start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    if (pthread_create(thread, NULL, run, argument))
        die("cannot start a thread");
}

static void sleep_until(int64_t at_ns)
{
    struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

struct pace {
    int64_t start_ns, end_ns;
    int fd;
};

/* Replies are read and checked beside the sending, so that the server never waits for the generator. */
static void *drain_replies(void *argument)
{
    static char bytes[64 << 10];
    int fd = *(int *)argument;
    size_t fill = 0;
    for (long replies = 0; replies < opt.count;) {
        fill += receive(fd, bytes + fill, sizeof bytes - fill);
        size_t used = speech->scan(bytes, fill, &replies);
        memmove(bytes, bytes + used, fill -= used);
    }
    return NULL;
}

/* A message is stamped when it is sent; one that fell due while an earlier send was blocked is stamped with the
 * time it was due, so a server that stops reading cannot hide the wait. */
static void *send_paced(void *argument)
{
    struct pace *pace = argument;
    struct block block = block_make();
    int64_t step_ns = 1000000000LL / opt.rate;
    size_t stamp_at = block.unit_bytes - speech->trailer - (size_t)opt.size;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (long sent = 0; sent < opt.count;) {
        int64_t due_ns = pace->start_ns + sent * step_ns, now = now_ns(), slept = now < due_ns;
        if (slept)
            sleep_until(due_ns), now = now_ns();
        long ready = (now - pace->start_ns) / step_ns + 1 - sent, room = (long)block.units, i;
        if (ready > opt.count - sent)
            ready = opt.count - sent;
        for (i = 0; i < ready && i < room; i++) {
            int64_t stamp_ns = slept ? now : pace->start_ns + (sent + i) * step_ns;
            memcpy(block.bytes + (size_t)i * block.unit_bytes + stamp_at, &stamp_ns, 8);
        }
        send_all(pace->fd, block.bytes, (size_t)i * block.unit_bytes);
        sent += i;
    }
    pace->end_ns = now_ns();
    return NULL;
}

static void take_nsq(struct consumer *c, struct times *times)
{
    while (c->messages < opt.count)
        consumer_step(c, times);
    consumer_close(c);
}

static void take_redis(int fd, struct times *times)
{
    struct xread x = xread_open(fd, 1000);
    for (long got = 0; got < opt.count;)
        got += xread_next(&x, times);
}

void mode_paced(void)
{
    struct times times = {0};
    struct pace pace = {.fd = greeted()};
    pthread_t sender, drain;
    int is_nsq = !strcmp(opt.dialect, "nsq");
    struct consumer c = {0};
    opt.count = (long)((opt.seconds + (double)(WARM_UP_NS + COOL_DOWN_NS) / 1e9) * (double)opt.rate);
    if (is_nsq) {
        c = consumer_open(0);
        consumer_ready(&c);
    } else {
        c.fd = greeted();
    }
    pace.start_ns = now_ns();
    times.from_ns = pace.start_ns + WARM_UP_NS;
    times.until_ns = times.from_ns + (int64_t)(opt.seconds * 1e9);
    start_thread(&sender, send_paced, &pace);
    start_thread(&drain, drain_replies, &pace.fd);
    if (is_nsq)
        take_nsq(&c, &times);
    else
        take_redis(c.fd, &times);
    pthread_join(sender, NULL);
    pthread_join(drain, NULL);
    printf("\"messages\":%ld,\"seconds\":%.6f", opt.count, (double)(pace.end_ns - pace.start_ns) / 1e9);
    times_print(&times);
}

/* Bodies begin with the wall-clock ns at which they fall due; what was due before the consumer came does not count. */
void mode_late(void)
{
    struct consumer c = consumer_open(0);
    int64_t start_ns = now_ns();
    struct times times = {.from_ns = wall_ns()};
    times.until_ns = times.from_ns + (int64_t)(opt.seconds * 1e9);
    c.clock = wall_ns;
    consumer_ready(&c);
    for (double left; (left = opt.seconds + LATE_GRACE_SECONDS - seconds_since(start_ns)) > 0;) {
        struct pollfd ready = {c.fd, POLLIN, 0};
        if (poll(&ready, 1, (int)(left * 1000) + 1))
            consumer_step(&c, &times);
    }
    consumer_close(&c);
    printf("\"messages\":%zu,\"seconds\":%.6f", times.count, opt.seconds);
    times_print(&times);
}

static void *pipeline(void *argument)
{
    publisher_run(argument);
    return NULL;
}

/* Publishes once a millisecond and waits for each reply, until `end_ns`. */
static void probe(int fd, int64_t end_ns, struct times *times)
{
    struct block block = block_make();
    for (size_t unit = 0; now_ns() < end_ns; unit = (unit + 1) % block.units) {
        int64_t sent_ns = now_ns();
        send_all(fd, block.bytes + unit * block.unit_bytes, block.unit_bytes);
        await_reply(fd);
        times_add(times, now_ns() - sent_ns);
        usleep(NEIGHBOUR_PAUSE_US);
    }
}

void mode_probe(void)
{
    struct times times = {0};
    int fd = greeted();
    int64_t start_ns = now_ns();
    probe(fd, start_ns + (int64_t)(opt.seconds * 1e9), &times);
    printf("\"messages\":%zu,\"seconds\":%.6f", times.count, seconds_since(start_ns));
    times_print(&times);
}

void mode_neighbour(void)
{
    struct times times = {0};
    struct publisher busy = publisher_open();
    int fd = greeted();
    pthread_t thread;
    start_thread(&thread, pipeline, &busy);
    usleep((useconds_t)(WARM_UP_NS / 1000));
    probe(fd, now_ns() + (int64_t)(opt.seconds * 1e9) - WARM_UP_NS - 100000000LL, &times);
    pthread_join(thread, NULL);
    printf("\"messages\":%ld,\"seconds\":%.6f,\"probes\":%zu", publisher_messages(&busy), seconds_since(busy.start_ns),
           times.count);
    times_print(&times);
}

/* Sends one datagram after the other at a fixed rate. One that fell due while an earlier one was being sent counts from
 * then, so a node that makes its senders wait cannot hide it; that this thread woke up late is nobody's doing. */
void mode_fire(void)
{
    struct times times = {0};
    struct publisher busy = publisher_open();
    struct dory_sender sender = datagrams_open();
    pthread_t thread;
    start_thread(&thread, pipeline, &busy);
    usleep((useconds_t)(WARM_UP_NS / 1000));
    prctl(PR_SET_TIMERSLACK, 1000);
    int64_t step_ns = 1000000000LL / opt.rate, start_ns = now_ns(), woke_ns = start_ns, spent_ns = 0, due_ns;
    int64_t end_ns = start_ns + (int64_t)(opt.seconds * 1e9) - WARM_UP_NS - 100000000LL;
    for (long i = 0; (due_ns = start_ns + i * step_ns) < end_ns; i++) {
        if (now_ns() < due_ns)
            sleep_until(due_ns), woke_ns = now_ns();
        int64_t before_ns = thread_cpu_ns();
        datagram(&sender, &busy.block, i);
        spent_ns += thread_cpu_ns() - before_ns;
        times_add(&times, now_ns() - (due_ns > woke_ns ? due_ns : woke_ns));
    }
    pthread_join(thread, NULL);
    dory_close(&sender);
    printf("\"messages\":%ld,\"seconds\":%.6f,\"fired\":%zu,\"cpu_us\":%.4f", publisher_messages(&busy),
           seconds_since(busy.start_ns), times.count, (double)spent_ns / 1e3 / (double)times.count);
    times_print(&times);
}
