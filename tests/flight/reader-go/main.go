// Reads a topic over Arrow Flight with Arrow's Go client, and nothing of Penstock: finds the topic by its name, reads
// every endpoint with the ticket it is offered, and prints each row as one line of JSON. With -put it publishes the
// words after the topic's name first.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"

	"github.com/apache/arrow/go/v12/arrow"
	"github.com/apache/arrow/go/v12/arrow/array"
	"github.com/apache/arrow/go/v12/arrow/flight"
	"github.com/apache/arrow/go/v12/arrow/ipc"
	"github.com/apache/arrow/go/v12/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

func main() {
	put := flag.Bool("put", false, "publish before reading")
	token := flag.String("token", "", "what the node wants to hear")
	flag.Parse()
	address, topic, words := flag.Arg(0), flag.Arg(1), flag.Args()[2:]

	client, err := flight.NewClientWithMiddleware(
		address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer client.Close()
	ctx := context.Background()
	if *token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*token)
	}
	if *put {
		publish(ctx, client, topic, words)
	}
	read(ctx, client, topic)
}

func publish(ctx context.Context, client flight.Client, topic string, words []string) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "body", Type: arrow.BinaryTypes.Binary},
		{Name: "tag", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	for _, word := range words {
		builder.Field(0).(*array.BinaryBuilder).Append([]byte(word))
		builder.Field(1).(*array.StringBuilder).Append("go")
	}
	stream, err := client.DoPut(ctx)
	check(err)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{topic}})
	check(writer.Write(builder.NewRecord()))
	check(writer.Close())
	check(stream.CloseSend())
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return
		} else {
			check(err)
		}
	}
}

func read(ctx context.Context, client flight.Client, topic string) {
	descriptor := &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{topic}}
	info, err := client.GetFlightInfo(ctx, descriptor)
	check(err)
	out := json.NewEncoder(os.Stdout)
	for _, endpoint := range info.Endpoint {
		stream, err := client.DoGet(ctx, endpoint.Ticket)
		check(err)
		reader, err := flight.NewRecordReader(stream)
		check(err)
		for reader.Next() {
			record := reader.Record()
			for row := 0; row < int(record.NumRows()); row++ {
				check(out.Encode(cells(record, row)))
			}
		}
		if err := reader.Err(); err != nil && err != io.EOF {
			check(err)
		}
		reader.Release()
	}
}

// Values of a row by column; those that are null are left out, and bytes are base64.
func cells(record arrow.Record, row int) map[string]any {
	found := map[string]any{}
	for number, field := range record.Schema().Fields() {
		if column := record.Column(number); column.IsValid(row) {
			found[field.Name] = column.GetOneForMarshal(row)
		}
	}
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
