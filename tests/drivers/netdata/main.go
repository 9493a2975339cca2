// Netdata's collector for PgBouncer as its agent runs it: two collections on one connection, 1.5 seconds apart. Prints the second as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/netdata/go.d.plugin/modules/pgbouncer"
)

func main() {
	collector := pgbouncer.New()
	collector.DSN = os.Args[1]
	if !collector.Init() || !collector.Check() {
		os.Exit(1)
	}
	// After a second of idleness database/sql asks the connection whether it is alive.
	time.Sleep(1500 * time.Millisecond)
	text, err := json.Marshal(collector.Collect())
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	collector.Cleanup()
}
