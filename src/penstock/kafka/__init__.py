"""What Kafka's bytes mean, as far as sending to it needs: questions and answers, and record batches from columns.

No sockets, no clock. Reading from Kafka is librdkafka's work.
"""
