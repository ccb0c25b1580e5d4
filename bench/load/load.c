/* The load generator: one mode a run, one line of JSON with what it saw. `bench/generator.py` is its caller.
 *
 * It must never be what is measured: publishes are encoded before the clock starts, one thread serves all
 * connections, and `python -m bench --self-check` shows its own ceiling. Every reply is checked. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "consumer.h"
#include "modes.h"
#include "publisher.h"

#define EVENTS 256
#define STALL_MS 20000

static void print_rate(long messages, double seconds)
{
    printf("\"messages\":%ld,\"seconds\":%.6f", messages, seconds);
}

/* pub: pipelined publishing on one connection. */
static void mode_pub(void)
{
    struct publisher p = publisher_open();
    publisher_run(&p);
    print_rate(publisher_messages(&p), seconds_since(p.start_ns));
    printf(",\"first_at\":%.6f", (double)p.start_ns / 1e9);
}

/* wait: each connection publishes one message (or batch) and waits for its reply. */
static void mode_wait(void)
{
    struct block block = block_make();
    struct { int fd; int64_t sent_ns; } *line = calloc((size_t)opt.connections, sizeof *line);
    struct times times = {0};
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(0);
    for (long i = 0; i < opt.connections; i++) {
        struct epoll_event event = {EPOLLIN, {.u64 = (uint64_t)i}};
        line[i].fd = greeted();
        epoll_ctl(poller, EPOLL_CTL_ADD, line[i].fd, &event);
    }
    int64_t start_ns = now_ns(), end_ns = start_ns + (int64_t)(opt.seconds * 1e9);
    for (long i = 0; i < opt.connections; i++) {
        line[i].sent_ns = now_ns();
        send_all(line[i].fd, block.bytes, block.unit_bytes);
    }
    for (long open = opt.connections; open;) {
        int ready = epoll_wait(poller, events, EVENTS, STALL_MS);
        if (ready <= 0)
            die("stalled after %zu replies", times.count);
        for (int e = 0; e < ready; e++) {
            size_t i = events[e].data.u64, unit = times.count % block.units;
            await_reply(line[i].fd);
            int64_t now = now_ns();
            times_add(&times, now - line[i].sent_ns);
            if (opt.count ? (long)times.count + open > opt.count : now >= end_ns) {
                open--;
                continue;
            }
            line[i].sent_ns = now;
            send_all(line[i].fd, block.bytes + unit * block.unit_bytes, block.unit_bytes);
        }
    }
    print_rate((long)times.count * block.messages_per_unit, seconds_since(start_ns));
    times_print(&times);
}

static struct consumer *consumers_open(int poller, long connections)
{
    struct consumer *all = calloc((size_t)connections, sizeof *all);
    for (long i = 0; i < connections; i++) {
        struct epoll_event event = {EPOLLIN, {.u64 = (uint64_t)i}};
        all[i] = consumer_open(i);
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    return all;
}

/* Ends the consumers; their FINs count as done only once the server has answered something after them. */
static void consumers_close(struct consumer *all, long connections, int64_t start_ns)
{
    long messages = 0, redelivered = 0;
    for (long i = 0; i < connections; i++) {
        consumer_close(&all[i]);
        messages += all[i].messages;
        redelivered += all[i].redelivered;
    }
    print_rate(messages, seconds_since(start_ns));
    printf(",\"redelivered\":%ld", redelivered);
}

/* sub: `connections` consumers share `count` messages; the clock starts with the first message. */
static void mode_sub(void)
{
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(0);
    struct consumer *all = consumers_open(poller, opt.connections);
    int64_t first_ns = 0;
    for (long i = 0; i < opt.connections; i++)
        consumer_ready(&all[i]);
    for (long got = 0; got < opt.count;) {
        int ready = epoll_wait(poller, events, EVENTS, STALL_MS);
        if (ready <= 0)
            die("stalled after %ld of %ld messages", got, opt.count);
        for (int e = 0; e < ready; e++) {
            struct consumer *c = &all[events[e].data.u64];
            got -= c->messages;
            consumer_step(c, NULL);
            got += c->messages;
            if (!first_ns)
                first_ns = c->first_ns;
        }
    }
    consumers_close(all, opt.connections, first_ns);
    printf(",\"first_at\":%.6f", (double)first_ns / 1e9);
}

/* flow: one publisher for `seconds` and, at the same time, `connections` consumers, at least one on each of
 * `channels` channels. */
static void mode_flow(void)
{
    struct epoll_event events[EVENTS];
    long consumers = opt.connections > opt.channels ? opt.connections : opt.channels;
    int poller = epoll_create1(0);
    struct consumer *all = consumers_open(poller, consumers);
    struct publisher p = publisher_open();
    struct epoll_event event = {EPOLLIN | EPOLLOUT, {.u64 = (uint64_t)consumers}};
    uint32_t asked = event.events;
    epoll_ctl(poller, EPOLL_CTL_ADD, p.fd, &event);
    for (long i = 0; i < consumers; i++)
        consumer_ready(&all[i]);
    publisher_start(&p);
    for (long got = 0; !publisher_done(&p) || got < publisher_messages(&p) * opt.channels;) {
        event.events = publisher_wants(&p) & POLLOUT ? EPOLLIN | EPOLLOUT : EPOLLIN;
        if (event.events != asked)
            epoll_ctl(poller, EPOLL_CTL_MOD, p.fd, &event);
        asked = event.events;
        int ready = epoll_wait(poller, events, EVENTS, STALL_MS);
        if (ready <= 0)
            die("stalled after %ld deliveries of %ld messages", got, publisher_messages(&p));
        for (int e = 0; e < ready; e++) {
            uint64_t i = events[e].data.u64;
            if (i == (uint64_t)consumers) {
                publisher_step(&p, events[e].events & ~(uint32_t)EPOLLOUT, events[e].events & EPOLLOUT);
                continue;
            }
            got -= all[i].messages;
            consumer_step(&all[i], NULL);
            got += all[i].messages;
        }
    }
    consumers_close(all, consumers, p.start_ns);
    printf(",\"published\":%ld", publisher_messages(&p));
}

static const struct { const char *name; void (*run)(void); } MODES[] = {
    {"pub", mode_pub},     {"wait", mode_wait},           {"sub", mode_sub},   {"flow", mode_flow},
    {"paced", mode_paced}, {"neighbour", mode_neighbour}, {"late", mode_late}, {"disk", mode_disk},
    {"sink", mode_sink},   {"source", mode_source},       {"read", mode_read},
    {"probe", mode_probe}, {"drain", mode_drain},         {"service", mode_service},
    {"fire", mode_fire},   {"datagrams", mode_datagrams}, {"stream", mode_stream},
};

int main(int count, char **words)
{
    options_parse(count, words);
    speech_choose();
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
        if (strcmp(MODES[i].name, opt.mode))
            continue;
        putchar('{');
        MODES[i].run();
        puts("}");
        return 0;
    }
    die("unknown mode %s", opt.mode);
}
