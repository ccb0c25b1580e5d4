//go:build tools

// Package peers pins the Go brokers that the benchmarks run beside Penstock.
package peers

import _ "github.com/nsqio/nsq/apps/nsqd"
