/* Reading a Redis stream with XREAD, one reply after another. */
#ifndef LOAD_XREAD_H
#define LOAD_XREAD_H

#include "net.h"

struct xread {
    int fd;
    long entries;     /* asked for at a time */
    char last_id[64]; /* of the last entry that was read */
    char *bytes;
    size_t room;
};

struct xread xread_open(int fd, long entries);

/* The messages of the next reply, at least one; with `times`, their bodies begin with when they were sent. */
long xread_next(struct xread *x, struct times *times);

#endif
