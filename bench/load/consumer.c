#define _GNU_SOURCE
#include "consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_BYTES (1 << 20)
/* Frame: size 4, type 4, timestamp 8, attempts 2, id 16, body. */
#define ATTEMPTS_AT 16
#define ID_AT 18
#define BODY_AT 34
#define FIN_BYTES 21

struct consumer consumer_open(long number)
{
    struct consumer c = {.fd = greeted(), .in = malloc(IN_BYTES), .clock = now_ns};
    c.fins = malloc(IN_BYTES / BODY_AT * FIN_BYTES);
    char line[256];
    if (opt.ext) {
        if (number < opt.claims)
            sprintf(line, "{\"extend_support\":true,\"desired_tag\":\"t%05ld\"}", opt.first_tag + number);
        else
            strcpy(line, "{\"extend_support\":true}");
        nsq_identify(c.fd, line);
    }
    int size = sprintf(line, "SUB %s %s%ld\n", opt.topic, opt.channel, number % opt.channels);
    send_all(c.fd, line, (size_t)size);
    await_reply(c.fd);
    return c;
}

void consumer_ready(struct consumer *c)
{
    char line[64];
    send_all(c->fd, line, (size_t)sprintf(line, "RDY %ld\n", opt.rdy));
}

static char *take(struct consumer *c, const char *frame, char *fin)
{
    memcpy(fin, "FIN ", 4);
    memcpy(fin + 4, frame + ID_AT, 16);
    fin[20] = '\n';
    c->messages++;
    c->redelivered += frame[ATTEMPTS_AT] || frame[ATTEMPTS_AT + 1] != 1;
    return fin + FIN_BYTES;
}

static void answer(struct consumer *c, const char *frame, size_t whole)
{
    if (whole == 8 + 11 && !memcmp(frame + 8, "_heartbeat_", 11))
        send_all(c->fd, "NOP\n", 4);
    else if (whole == 8 + 10 && !memcmp(frame + 8, "CLOSE_WAIT", 10))
        c->closed = 1;
}

void consumer_step(struct consumer *c, struct times *times)
{
    c->fill += receive(c->fd, c->in + c->fill, IN_BYTES - c->fill);
    int64_t now = c->clock();
    char *fin = c->fins;
    size_t at = 0, whole;
    uint32_t type;
    while ((whole = nsq_frame(c->in + at, c->fill - at, &type))) {
        if (type == 2) {
            fin = take(c, c->in + at, fin);
            if (times) {
                int64_t sent_ns;
                memcpy(&sent_ns, c->in + at + BODY_AT, 8);
                times_between(times, sent_ns, now);
            }
        } else {
            answer(c, c->in + at, whole);
        }
        at += whole;
    }
    if (fin > c->fins) {
        if (!c->first_ns)
            c->first_ns = now;
        send_all(c->fd, c->fins, (size_t)(fin - c->fins));
    }
    memmove(c->in, c->in + at, c->fill -= at);
}

void consumer_close(struct consumer *c)
{
    send_all(c->fd, "CLS\n", 4);
    while (!c->closed)
        consumer_step(c, NULL);
}
