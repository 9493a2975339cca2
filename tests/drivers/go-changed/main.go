// Runs prepared statements with pgx, one for each line of standard input: see test_changed_columns.py.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

func run(ctx context.Context, conn *pgx.Conn, line string) (any, error) {
	var a, value any
	switch line {
	case "read":
		rows, err := conn.Query(ctx, "select * from changing where a = $1", 1)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				return nil, err
			}
			value = values[1]
		}
		return value, rows.Err()
	case "write":
		err := conn.QueryRow(ctx, "insert into changing (a) values ($1) returning a, b", 1).Scan(&a, &value)
		return value, err
	}
	_, err := conn.Exec(ctx, "update changing set a = $1 where a = $2", 1, 1)
	return 1, err
}

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		fmt.Println("fault:", err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		value, err := run(ctx, conn, lines.Text())
		var fault *pgconn.PgError
		if exact, ok := value.(pgtype.Numeric); ok {
			float, _ := exact.Float64Value()
			value = float.Float64
		}
		switch {
		case err == nil:
			fmt.Println("value", value)
		case errors.As(err, &fault):
			fmt.Println("error", fault.Code)
		default:
			fmt.Println("fault:", err)
		}
	}
	conn.Close(ctx)
}
