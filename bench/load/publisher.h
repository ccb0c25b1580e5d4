/* One pipelining publisher on a non-blocking connection: writes its block over and over and counts the replies. */
#ifndef LOAD_PUBLISHER_H
#define LOAD_PUBLISHER_H

#include "speech.h"

struct publisher {
    int fd;
    struct block block;
    size_t sent_bytes, limit_bytes; /* the limit is unknown (SIZE_MAX) while the run goes by time */
    long replies;
    char *in;
    size_t fill;
    int64_t start_ns, end_ns;
};

struct publisher publisher_open(void);
void publisher_start(struct publisher *p);         /* the clock runs from here */
short publisher_wants(struct publisher *p);        /* poll events that would let it go on */
void publisher_step(struct publisher *p, int readable, int writable);
int publisher_done(struct publisher *p);           /* everything sent was answered */
long publisher_messages(const struct publisher *p);
void publisher_run(struct publisher *p);           /* start to done, alone */

#endif
