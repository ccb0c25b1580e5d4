//go:build tools

// Package peers pins the Go programs that benchmarks and tests run beside Penstock.
package peers

import (
	_ "github.com/nsqio/nsq/apps/nsq_stat"
	_ "github.com/nsqio/nsq/apps/nsq_tail"
	_ "github.com/nsqio/nsq/apps/nsq_to_file"
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
	_ "github.com/nsqio/nsq/apps/to_nsq"
)
