// Describes and alters client quotas with franz-go's kadm.
//
// Reads requests from standard input, one JSON object a line, and writes one JSON line for each:
//
//	{"alter": [{"entity": {"user": "alice"}, "ops": {"producer_byte_rate": 5, "consumer_byte_rate": null}}],
//	 "validate_only": false}    [{"entity": {...}, "code": 0, "message": null}]
//	{"describe": [{"type": "user", "match": "exact", "name": "alice"}], "strict": false}
//	                            {"code": 0, "entries": [{"entity": {...}, "values": {...}}]}
//
// A null name is the default entity, a null value removes the key.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type component struct {
	Type  string
	Match string
	Name  *string
}

type entry struct {
	Entity map[string]*string
	Ops    map[string]*float64
}

type request struct {
	Alter        []entry
	ValidateOnly bool `json:"validate_only"`
	Describe     []component
	Strict       bool
}

type altered struct {
	Entity  map[string]*string `json:"entity"`
	Code    int16              `json:"code"`
	Message *string            `json:"message"`
}

type describedEntry struct {
	Entity map[string]*string `json:"entity"`
	Values map[string]float64 `json:"values"`
}

type described struct {
	Code    int16            `json:"code"`
	Entries []describedEntry `json:"entries"`
}

var matchTypes = map[string]kadm.QuotasMatchType{"exact": 0, "default": 1, "any": 2}

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ClientID("kadm"))
	if err != nil {
		fail(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fail(err)
		}
		var answer any
		if asked.Alter != nil {
			answer = alter(ctx, admin, asked)
		} else {
			answer = describe(ctx, admin, asked)
		}
		if err := answers.Encode(answer); err != nil {
			fail(err)
		}
	}
}

func alter(ctx context.Context, admin *kadm.Client, asked request) []altered {
	var entries []kadm.AlterClientQuotaEntry
	for _, wanted := range asked.Alter {
		var made kadm.AlterClientQuotaEntry
		for entityType, name := range wanted.Entity {
			made.Entity = append(made.Entity, kadm.ClientQuotaEntityComponent{Type: entityType, Name: name})
		}
		for key, value := range wanted.Ops {
			if value == nil {
				made.Ops = append(made.Ops, kadm.AlterClientQuotaOp{Key: key, Remove: true})
			} else {
				made.Ops = append(made.Ops, kadm.AlterClientQuotaOp{Key: key, Value: *value})
			}
		}
		entries = append(entries, made)
	}
	do := admin.AlterClientQuotas
	if asked.ValidateOnly {
		do = admin.ValidateAlterClientQuotas
	}
	results, err := do(ctx, entries)
	if err != nil {
		fail(err)
	}
	told := []altered{}
	for _, result := range results {
		one := altered{Entity: named(result.Entity), Code: code(result.Err)}
		if result.ErrMessage != "" {
			message := result.ErrMessage
			one.Message = &message
		}
		told = append(told, one)
	}
	return told
}

func describe(ctx context.Context, admin *kadm.Client, asked request) described {
	var components []kadm.DescribeClientQuotaComponent
	for _, wanted := range asked.Describe {
		components = append(components, kadm.DescribeClientQuotaComponent{
			Type: wanted.Type, MatchName: wanted.Name, MatchType: matchTypes[wanted.Match],
		})
	}
	found, err := admin.DescribeClientQuotas(ctx, asked.Strict, components)
	told := described{Code: code(err), Entries: []describedEntry{}}
	for _, one := range found {
		values := map[string]float64{}
		for _, value := range one.Values {
			values[value.Key] = value.Value
		}
		told.Entries = append(told.Entries, describedEntry{named(one.Entity), values})
	}
	return told
}

func named(entity kadm.ClientQuotaEntity) map[string]*string {
	names := map[string]*string{}
	for _, part := range entity {
		names[part.Type] = part.Name
	}
	return names
}

// code is the error code that the broker gave; any other error ends the program.
func code(err error) int16 {
	var told *kerr.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return told.Code
	}
	fail(err)
	return 0
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
