// The driver battery for pgx: every step prints "ok <step>"; the first fault ends the program.
//
// Where to connect to comes from libpq's environment variables.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const sleeping = "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(30)' and pid <> pg_backend_pid()"

func check(err error) {
	if err != nil {
		fmt.Println("fault:", err)
		os.Exit(1)
	}
}

func expect(condition bool, format string, values ...any) {
	if !condition {
		check(fmt.Errorf(format, values...))
	}
}

func sqlstate(err error) string {
	var fault *pgconn.PgError
	if errors.As(err, &fault) {
		return fault.Code
	}
	return fmt.Sprint(err)
}

func done(step string) { fmt.Println("ok", step) }

func main() {
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	defer stop()
	config, err := pgx.ParseConfig("")
	check(err)
	var notices []string
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { notices = append(notices, notice.Message) }
	conn, err := pgx.ConnectConfig(ctx, config)
	check(err)
	done("connect")
	if len(os.Args) > 1 && os.Args[1] == "console" {
		console(ctx, conn)
		return
	}

	statements(ctx, conn)
	transactions(ctx, conn)
	bulk(ctx, conn)

	_, err = conn.Exec(ctx, "do $$ begin raise notice 'hello'; end $$")
	check(err)
	expect(len(notices) > 0 && notices[len(notices)-1] == "hello", "notices: %v", notices)
	done("notices")

	pipeline(ctx, conn)
	cancel(ctx, conn)
	if os.Getenv("BATTERY_SESSION") == "1" {
		session(ctx, conn)
	}
	check(conn.Close(ctx))
	concurrent(ctx)
}

// The pooler's console, by prepared statements with binary results as pgx uses them by default.
func console(ctx context.Context, conn *pgx.Conn) {
	check(conn.Ping(ctx))
	done("ping")
	for range 2 {
		rows, err := conn.Query(ctx, "SHOW LISTS")
		check(err)
		lists, err := pgx.CollectRows(rows, pgx.RowToMap)
		check(err)
		databases, isNumber := lists[0]["items"].(int32)
		expect(len(lists) == 14 && isNumber && databases > 0, "lists: %v", lists)
		rows, err = conn.Query(ctx, "SHOW STATS")
		check(err)
		stats, err := pgx.CollectRows(rows, pgx.RowToMap)
		check(err)
		expect(len(stats) > 0, "stats: %v", stats)
	}
	done("show")
	_, err := conn.Exec(ctx, "RELOAD")
	check(err)
	_, err = conn.Exec(ctx, "PAUSE nowhere")
	expect(sqlstate(err) == "08P01", "an error: %v", err)
	done("commands")
	check(conn.Close(ctx))
}

func statements(ctx context.Context, conn *pgx.Conn) {
	var number int
	check(conn.QueryRow(ctx, "select 1 + 1", pgx.QueryExecModeSimpleProtocol).Scan(&number))
	expect(number == 2, "simple: %d", number)
	done("simple")

	var text string
	var nothing *string
	var raw []byte
	check(conn.QueryRow(ctx, "select $1::int, $2::text, $3::text, $4::bytea", 7, "é'\"", nil, []byte{0, 255}).Scan(&number, &text, &nothing, &raw))
	expect(number == 7 && text == "é'\"" && nothing == nil && bytes.Equal(raw, []byte{0, 255}), "params")
	done("params")

	other, err := pgx.Connect(ctx, "")
	check(err)
	_, err = conn.Prepare(ctx, "named", "select $1::int * 2")
	check(err)
	_, err = other.Prepare(ctx, "named", "select $1::int * 3")
	check(err)
	for n := range 50 {
		check(conn.QueryRow(ctx, "named", n).Scan(&number))
		expect(number == n*2, "prepared: %d", number)
		check(other.QueryRow(ctx, "named", n).Scan(&number))
		expect(number == n*3, "prepared: %d", number)
		check(conn.QueryRow(ctx, "select $1::int + 1", n).Scan(&number))
		expect(number == n+1, "cached: %d", number)
	}
	check(conn.Deallocate(ctx, "named"))
	check(other.Close(ctx))
	done("prepared")
}

func transactions(ctx context.Context, conn *pgx.Conn) {
	_, err := conn.Exec(ctx, "drop table if exists t_pgx")
	check(err)
	_, err = conn.Exec(ctx, "create table t_pgx (n int primary key, t text)")
	check(err)
	count := func() (n int) {
		check(conn.QueryRow(ctx, "select count(*) from t_pgx").Scan(&n))
		return n
	}
	tx, err := conn.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "insert into t_pgx values ($1, $2)", 1, "one")
	check(err)
	check(tx.Commit(ctx))
	expect(count() == 1, "commit")
	done("transaction")

	tx, err = conn.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "insert into t_pgx values ($1, $2)", 2, "two")
	check(err)
	check(tx.Rollback(ctx))
	expect(count() == 1, "rollback")
	done("rollback")

	_, err = conn.Exec(ctx, "insert into t_pgx values ($1, $2)", 1, "again")
	expect(sqlstate(err) == "23505", "error: %v", err)
	_, err = conn.Exec(ctx, "selec 1")
	expect(sqlstate(err) == "42601", "error: %v", err)
	tx, err = conn.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "select 1 / $1::int", 0)
	expect(sqlstate(err) == "22012", "error: %v", err)
	_, err = tx.Exec(ctx, "select 1")
	expect(sqlstate(err) == "25P02", "error: %v", err)
	check(tx.Rollback(ctx))
	expect(count() == 1, "after errors")
	done("errors")
}

func bulk(ctx context.Context, conn *pgx.Conn) {
	rows, err := conn.Query(ctx, "select g, repeat('x', 100) from generate_series(1, $1) g", 100000)
	check(err)
	sum, number, text := 0, 0, ""
	for rows.Next() {
		check(rows.Scan(&number, &text))
		sum += number
	}
	check(rows.Err())
	expect(sum == 100000*100001/2, "big result: %d", sum)
	done("big")

	copied, err := conn.CopyFrom(ctx, pgx.Identifier{"t_pgx"}, []string{"n", "t"}, pgx.CopyFromSlice(10000, func(i int) ([]any, error) {
		return []any{i + 10, strings.Repeat("y", i%50)}, nil
	}))
	check(err)
	expect(copied == 10000, "copy in: %d", copied)
	var out bytes.Buffer
	tag, err := conn.PgConn().CopyTo(ctx, &out, "copy (select n from t_pgx order by n) to stdout")
	check(err)
	expect(tag.RowsAffected() == 10001 && strings.HasSuffix(out.String(), "\n10009\n"), "copy out: %s", tag)
	done("copy")
}

func pipeline(ctx context.Context, conn *pgx.Conn) {
	batch := &pgx.Batch{}
	for n := range 200 {
		batch.Queue("select $1::int", n)
	}
	results := conn.SendBatch(ctx, batch)
	for n := range 200 {
		var number int
		check(results.QueryRow().Scan(&number))
		expect(number == n, "batch: %d", number)
	}
	check(results.Close())

	batch = &pgx.Batch{}
	for _, divisor := range []int{1, 0, 1} {
		batch.Queue("select 1 / $1::int", divisor)
	}
	expect(sqlstate(conn.SendBatch(ctx, batch).Close()) == "22012", "an error in a batch")
	var number int
	check(conn.QueryRow(ctx, "select 5").Scan(&number))
	done("pipeline")
}

func cancel(ctx context.Context, conn *pgx.Conn) {
	go func() {
		other, err := pgx.Connect(ctx, "")
		check(err)
		for running := 0; running == 0; time.Sleep(20 * time.Millisecond) {
			check(other.QueryRow(ctx, sleeping).Scan(&running))
		}
		check(other.Close(ctx))
		check(conn.PgConn().CancelRequest(ctx))
	}()
	_, err := conn.Exec(ctx, "select pg_sleep(30)")
	expect(sqlstate(err) == "57014", "cancel: %v", err)
	var number int
	check(conn.QueryRow(ctx, "select 6").Scan(&number))
	done("cancel")
}

// What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels.
func session(ctx context.Context, conn *pgx.Conn) {
	me := fmt.Sprintf("pgx_%d", os.Getpid())
	other, err := pgx.Connect(ctx, "")
	check(err)
	run := func(sql string) {
		_, err := conn.Exec(ctx, sql)
		check(err)
	}
	ask := func(conn *pgx.Conn, sql string) string {
		var value string
		check(conn.QueryRow(ctx, sql).Scan(&value))
		return value
	}
	run("set work_mem = '3333kB'")
	expect(ask(conn, "show work_mem") == "3333kB" && ask(other, "show work_mem") != "3333kB", "a setting")
	run("create temp table t_" + me + " (n int)")
	run("insert into t_" + me + " values (7)")
	expect(ask(other, "select coalesce(to_regclass('t_"+me+"')::text, 'none')") == "none", "another's temporary table")
	expect(ask(conn, "select n::text from t_"+me) == "7", "a temporary table")
	run("prepare " + me + " as select 'mine'")
	_, err = other.Exec(ctx, "execute "+me)
	expect(sqlstate(err) == "26000", "another's prepared statement: %v", err)
	run("execute " + me)
	run("select pg_advisory_lock(hashtext('" + me + "'))")
	expect(ask(other, "select pg_try_advisory_lock(hashtext('"+me+"'))::text") == "false", "another's lock")
	expect(ask(conn, "select pg_advisory_unlock(hashtext('"+me+"'))::text") == "true", "a lock")
	run("declare c_" + me + " cursor with hold for select generate_series(1, 3)")
	tag, err := conn.Exec(ctx, "fetch all c_"+me)
	check(err)
	expect(tag.RowsAffected() == 3, "a held cursor: %v", tag)
	run("listen " + me)
	_, err = other.Exec(ctx, "notify "+me+", 'hello'")
	check(err)
	note, err := conn.WaitForNotification(ctx)
	check(err)
	expect(note.Payload == "hello", "notification: %v", note)
	for _, sql := range []string{"close c_" + me, "drop table t_" + me, "unlisten *", "deallocate " + me, "reset all"} {
		run(sql)
	}
	check(other.Close(ctx))
	done("session")
}

func concurrent(ctx context.Context) {
	pool, err := pgxpool.New(ctx, "pool_max_conns=10")
	check(err)
	var all sync.WaitGroup
	for who := range 10 {
		all.Go(func() {
			for turn := range 50 {
				var number int
				check(pool.QueryRow(ctx, fmt.Sprintf("select $1::int + %d", who%3), turn).Scan(&number))
				expect(number == turn+who%3, "concurrent: %d", number)
			}
		})
	}
	all.Wait()
	pool.Close()
	done("concurrent")
}
