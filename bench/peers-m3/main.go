// M3's own producer and consumer as programs, for benchmarks and tests: what a peer of ours really says and hears.
//
//	m3msg consume ADDRESS COUNT            takes COUNT messages, acks them, and tells how fast they came
//	m3msg produce ADDRESS SHARDS COUNT SIZE [HEX]   sends COUNT messages of SIZE bytes, or this one, and waits for all acks
package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/m3db/m3/src/cluster/client"
	"github.com/m3db/m3/src/cluster/kv"
	"github.com/m3db/m3/src/cluster/kv/mem"
	"github.com/m3db/m3/src/cluster/placement"
	"github.com/m3db/m3/src/cluster/placement/service"
	"github.com/m3db/m3/src/cluster/placement/storage"
	"github.com/m3db/m3/src/cluster/services"
	"github.com/m3db/m3/src/msg/consumer"
	"github.com/m3db/m3/src/msg/producer"
	"github.com/m3db/m3/src/msg/producer/config"
	"github.com/m3db/m3/src/msg/topic"
	"github.com/m3db/m3/src/x/instrument"
	xio "github.com/m3db/m3/src/x/io"
	"gopkg.in/yaml.v2"
)

const settings = `
buffer:
  maxBufferSize: 1073741824
  closeCheckInterval: 50ms
  cleanupRetry:
    initialBackoff: 50ms
    maxBackoff: 100ms
writer:
  topicName: metrics
  messageQueueNewWritesScanInterval: 5ms
  messageQueueScanBatchSize: 256
  closeCheckInterval: 50ms
  connection:
    flushInterval: 5ms
    writeBufferSize: 1048576
    readBufferSize: 1048576
`

// One service at one address; everything that is not asked for is left out.
type world struct {
	store     kv.Store
	placement placement.Service
}

type cluster struct {
	client.Client
	world world
}

func (c cluster) Store(kv.OverrideOptions) (kv.Store, error) { return c.world.store, nil }

func (c cluster) Services(services.OverrideOptions) (services.Services, error) {
	return directory{world: c.world}, nil
}

type directory struct {
	services.Services
	world world
}

func (d directory) PlacementService(services.ServiceID, placement.Options) (placement.Service, error) {
	return d.world.placement, nil
}

type message struct {
	shard uint32
	value []byte
	done  *int64
}

func (m *message) Shard() uint32 { return m.shard }
func (m *message) Bytes() []byte { return m.value }
func (m *message) Size() int     { return len(m.value) }
func (m *message) Finalize(reason producer.FinalizeReason) {
	if reason == producer.Consumed {
		atomic.AddInt64(m.done, 1)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	must(err)
	return value
}

func produce(address string, shards, count, size int, given []byte) {
	id := services.NewServiceID().SetName("service")
	options := placement.NewOptions().SetIsSharded(true).SetShardStateMode(placement.StableShardStateOnly)
	placements := service.NewPlacementService(
		storage.NewPlacementStorage(mem.NewStore(), id.String(), options), service.WithPlacementOptions(options))
	instance := placement.NewInstance().SetID(address).SetEndpoint(address).SetIsolationGroup("a").SetWeight(1)
	_, err := placements.BuildInitialPlacement([]placement.Instance{instance}, shards, 1)
	must(err)
	all := cluster{world: world{store: mem.NewStore(), placement: placements}}
	topics, err := topic.NewService(topic.NewServiceOptions().SetConfigService(all))
	must(err)
	made := topic.NewTopic().SetName("metrics").SetNumberOfShards(uint32(shards)).SetConsumerServices(
		[]topic.ConsumerService{topic.NewConsumerService().SetServiceID(id).SetConsumptionType(topic.Shared)})
	_, err = topics.CheckAndSet(made, kv.UninitializedVersion)
	must(err)
	var parsed config.ProducerConfiguration
	must(yaml.Unmarshal([]byte(settings), &parsed))
	sender, err := parsed.NewProducer(all, instrument.NewOptions(), xio.NewOptions())
	must(err)
	must(sender.Init())
	value := given
	if value == nil {
		value = make([]byte, size)
	}
	var done int64
	start := time.Now()
	for i := 0; i < count; i++ {
		body := value
		if given == nil && size >= 8 {
			body = append([]byte(nil), value...)
			copy(body, fmt.Sprintf("%08d", i))
		}
		must(sender.Produce(&message{uint32(i % shards), body, &done}))
	}
	for atomic.LoadInt64(&done) < int64(count) {
		time.Sleep(time.Millisecond)
	}
	report(count, time.Since(start))
}

func consume(address string, count int) {
	var parsed consumer.Configuration
	must(yaml.Unmarshal([]byte("ackFlushInterval: 5ms\nackBufferSize: 4096\n"), &parsed))
	listener, err := consumer.NewListener(address, parsed.NewOptions(instrument.NewOptions()))
	must(err)
	var got int64
	var first time.Time
	started := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		for {
			taken, err := listener.Accept()
			if err != nil {
				return
			}
			taken.Init()
			go func() {
				for {
					found, err := taken.Message()
					if err != nil {
						taken.Close()
						return
					}
					found.Ack()
					now := atomic.AddInt64(&got, 1)
					if now == 1 {
						first = time.Now()
						started <- struct{}{}
					}
					if now == int64(count) {
						close(done)
					}
				}
			}()
		}
	}()
	<-started
	<-done
	took := time.Since(first)
	time.Sleep(200 * time.Millisecond) // the last acks
	report(count, took)
}

func report(count int, took time.Duration) {
	fmt.Printf("{\"messages\":%d,\"seconds\":%.6f}\n", count, took.Seconds())
}

func main() {
	words := os.Args[1:]
	switch {
	case len(words) == 3 && words[0] == "consume":
		consume(words[1], number(words[2]))
	case len(words) == 5 && words[0] == "produce":
		produce(words[1], number(words[2]), number(words[3]), number(words[4]), nil)
	case len(words) == 6 && words[0] == "produce":
		given, err := hex.DecodeString(words[5])
		must(err)
		produce(words[1], number(words[2]), number(words[3]), len(given), given)
	default:
		fmt.Fprintln(os.Stderr, "m3msg consume ADDRESS COUNT | produce ADDRESS SHARDS COUNT SIZE [HEX]")
		os.Exit(2)
	}
}
