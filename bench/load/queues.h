/* Queues over HTTP, as their clients ask: requests of boto3's shape for SQS, and Dynamiq's paths. */
#ifndef LOAD_QUEUES_H
#define LOAD_QUEUES_H

#include <stddef.h>

size_t sqs_unit(char *out); /* SendMessageBatch of opt.batch entries, SendMessage without a batch */
size_t sqs_scan(const char *bytes, size_t size, long *replies);

size_t dynamiq_unit(char *out); /* one message into a queue */
size_t dynamiq_scan(const char *bytes, size_t size, long *replies);

#endif
