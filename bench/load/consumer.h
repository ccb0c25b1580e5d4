/* One NSQ consumer: takes message frames, answers each read with the FINs of everything in it. */
#ifndef LOAD_CONSUMER_H
#define LOAD_CONSUMER_H

#include "speech.h"

struct consumer {
    int fd;
    char *in, *fins;
    size_t fill;
    long messages;       /* seen so far */
    long redelivered;    /* those that came with attempts > 1 */
    int closed;          /* CLOSE_WAIT was seen: every FIN before it was handled */
    int64_t first_ns;    /* when the first message came */
    int64_t (*clock)(void); /* the one that stamped the bodies; monotonic unless changed */
};

struct consumer consumer_open(long number); /* subscribed and confirmed; RDY not yet sent */
void consumer_ready(struct consumer *c);    /* RDY */

/* Reads once. With `times`, bodies begin with the nanosecond from which they are late. */
void consumer_step(struct consumer *c, struct times *times);
void consumer_close(struct consumer *c); /* CLS, and waits for its answer */

#endif
