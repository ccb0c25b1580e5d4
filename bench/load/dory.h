/* Senders of Dory's: what examples/c/penstock_dory.h does, as load. */
#ifndef LOAD_DORY_H
#define LOAD_DORY_H

#include "../../examples/c/penstock_dory.h"
#include "speech.h"

int64_t thread_cpu_ns(void);                                               /* of the thread that asks */
struct dory_sender datagrams_open(void);                                   /* to opt.path */
void datagram(struct dory_sender *to, const struct block *from, long number); /* a body of a block, as it is in turn */

#endif
