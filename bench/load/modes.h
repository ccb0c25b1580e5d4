/* The modes that have a file of their own. */
#ifndef LOAD_MODES_H
#define LOAD_MODES_H

void mode_paced(void);     /* latency.c: a fixed rate in, latency at a consumer out */
void mode_late(void);      /* latency.c: how late messages with a due time arrive */
void mode_neighbour(void); /* latency.c: publish and wait beside a pipelining connection */
void mode_fire(void);      /* latency.c: datagrams at a fixed rate beside a pipelining connection */
void mode_probe(void);     /* latency.c: publish and wait once a millisecond, nothing else */
void mode_read(void);      /* range.c: what a stream keeps, read from its beginning */
void mode_drain(void);     /* queues.c: what a queue of SQS holds, received and deleted by tens */
void mode_datagrams(void); /* dory.c: datagrams as fast as they are taken */
void mode_stream(void);    /* dory.c: messages over a UNIX stream */
void mode_disk(void);      /* probe.c: the disk's own fdatasync */
void mode_sink(void);      /* probe.c: answers publishes without looking at them */
void mode_service(void);   /* service.c: a consumer service of M3Msg that acks all it gets */
void mode_source(void);    /* probe.c: delivers messages as fast as they are taken */

#endif
