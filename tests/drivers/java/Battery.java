// The driver battery for pgjdbc: every step prints "ok <step>"; the first fault ends the program.
//
// Where to connect to comes from libpq's environment variables.

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;

public final class Battery {
    private static final String RUNNING =
            "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(30)' and pid <> pg_backend_pid()";

    private interface Action {
        void run() throws SQLException;
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = connect()) {
            done("connect");
            statements(connection);
            transactions(connection);
            bulk(connection);
            notices(connection);
            batch(connection);
            cancel(connection);
            if ("1".equals(System.getenv("BATTERY_SESSION"))) {
                session(connection);
            }
        }
        concurrent();
    }

    private static Connection connect() throws SQLException {
        String where = System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        return DriverManager.getConnection("jdbc:postgresql://" + where, System.getenv("PGUSER"), System.getenv("PGPASSWORD"));
    }

    private static void done(String step) {
        System.out.println("ok " + step);
    }

    private static void expect(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    private static String sqlstate(Action action) {
        try {
            action.run();
            return "no error";
        } catch (SQLException fault) {
            return fault.getSQLState();
        }
    }

    private static long number(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getLong(1);
        }
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static void insert(Connection connection, int number, String text) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("insert into t_jdbc values (?, ?)")) {
            statement.setInt(1, number);
            statement.setString(2, text);
            statement.executeUpdate();
        }
    }

    private static int call(PreparedStatement statement, int value) throws SQLException {
        statement.setInt(1, value);
        try (ResultSet rows = statement.executeQuery()) {
            rows.next();
            return rows.getInt(1);
        }
    }

    private static void statements(Connection connection) throws SQLException {
        expect(number(connection, "select 1 + 1") == 2, "simple");
        done("simple");

        try (PreparedStatement statement = connection.prepareStatement("select ?::int, ?::text, ?::text, ?::bytea")) {
            statement.setInt(1, 7);
            statement.setString(2, "é'\"");
            statement.setString(3, null);
            statement.setBytes(4, new byte[] {0, -1});
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                expect(rows.getInt(1) == 7 && rows.getString(2).equals("é'\"") && rows.getString(3) == null, "params");
                expect(java.util.Arrays.equals(rows.getBytes(4), new byte[] {0, -1}), "bytes");
            }
        }
        done("params");

        // From the fifth execution on the driver uses a named statement of the server.
        try (Connection other = connect();
                PreparedStatement twice = connection.prepareStatement("select ?::int * 2");
                PreparedStatement thrice = other.prepareStatement("select ?::int * 3")) {
            for (int n = 0; n < 50; n++) {
                expect(call(twice, n) == n * 2, "prepared");
                expect(call(thrice, n) == n * 3, "prepared by another connection");
            }
        }
        done("prepared");
    }

    private static void transactions(Connection connection) throws SQLException {
        execute(connection, "drop table if exists t_jdbc");
        execute(connection, "create table t_jdbc (n int primary key, t text)");
        connection.setAutoCommit(false);
        insert(connection, 1, "one");
        connection.commit();
        done("transaction");

        insert(connection, 2, "two");
        connection.rollback();
        expect(number(connection, "select count(*) from t_jdbc") == 1, "rollback");
        connection.commit();
        done("rollback");

        expect(sqlstate(() -> execute(connection, "select 1 / 0")).equals("22012"), "error");
        expect(sqlstate(() -> execute(connection, "select 1")).equals("25P02"), "aborted transaction");
        connection.rollback();
        connection.setAutoCommit(true);
        expect(sqlstate(() -> insert(connection, 1, "again")).equals("23505"), "unique");
        expect(sqlstate(() -> execute(connection, "selec 1")).equals("42601"), "syntax");
        expect(number(connection, "select count(*) from t_jdbc") == 1, "after errors");
        done("errors");
    }

    private static void bulk(Connection connection) throws Exception {
        connection.setAutoCommit(false);
        try (PreparedStatement statement = connection.prepareStatement("select g, repeat('x', 100) from generate_series(1, 100000) g")) {
            statement.setFetchSize(1000);
            long sum = 0;
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) {
                    sum += rows.getInt(1);
                }
            }
            expect(sum == 100_000L * 100_001 / 2, "big result through a portal");
        }
        connection.commit();
        connection.setAutoCommit(true);
        done("big");

        CopyManager copy = connection.unwrap(PGConnection.class).getCopyAPI();
        StringBuilder lines = new StringBuilder();
        for (int n = 0; n < 10_000; n++) {
            lines.append(n + 10).append('\t').append("y".repeat(n % 50)).append('\n');
        }
        expect(copy.copyIn("copy t_jdbc from stdin", new StringReader(lines.toString())) == 10_000, "copy in");
        StringWriter out = new StringWriter();
        expect(copy.copyOut("copy (select n from t_jdbc order by n) to stdout", out) == 10_001, "copy out");
        expect(out.toString().endsWith("\n10009\n"), "copied rows");
        done("copy");
    }

    private static void notices(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute("do $$ begin raise notice 'hello'; end $$");
            expect("hello".equals(statement.getWarnings().getMessage()), "notice");
        }
        done("notices");
    }

    private static void batch(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("insert into t_jdbc values (?, 'batch')")) {
            for (int n = 0; n < 500; n++) {
                statement.setInt(1, 100_000 + n);
                statement.addBatch();
            }
            expect(statement.executeBatch().length == 500, "batch");
        }
        expect(number(connection, "select count(*) from t_jdbc where t = 'batch'") == 500, "batch rows");
        try (Statement statement = connection.createStatement()) {
            statement.addBatch("insert into t_jdbc values (-1, 'x')");
            statement.addBatch("insert into t_jdbc values (-1, 'x')");
            statement.addBatch("insert into t_jdbc values (-2, 'x')");
            statement.executeBatch();
            throw new AssertionError("a failing batch succeeded");
        } catch (BatchUpdateException fault) {
            expect(fault.getSQLState().equals("23505"), "failing batch");
        }
        expect(number(connection, "select 5") == 5, "after a failing batch");
        done("pipeline");
    }

    private static void cancel(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> sqlstate(() -> {
                try (Connection other = connect()) {
                    while (number(other, RUNNING) == 0) {
                        Thread.onSpinWait();
                    }
                }
                statement.cancel();
            }));
            canceller.start();
            expect(sqlstate(() -> statement.execute("select pg_sleep(30)")).equals("57014"), "cancel");
        }
        expect(number(connection, "select 6") == 6, "after cancel");
        done("cancel");
    }

    private static String text(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getString(1);
        }
    }

    /** What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels. */
    private static void session(Connection connection) throws SQLException {
        String me = "pgjdbc_" + ProcessHandle.current().pid();
        try (Connection other = connect()) {
            execute(connection, "set work_mem = '3333kB'");
            expect(text(connection, "show work_mem").equals("3333kB"), "a setting");
            expect(!text(other, "show work_mem").equals("3333kB"), "another's setting");
            execute(connection, "create temp table t_" + me + " (n int)");
            execute(connection, "insert into t_" + me + " values (7)");
            expect(text(other, "select to_regclass('t_" + me + "')::text") == null, "another's temporary table");
            expect(number(connection, "select n from t_" + me) == 7, "a temporary table");
            execute(connection, "prepare " + me + " as select 'mine'");
            expect(sqlstate(() -> execute(other, "execute " + me)).equals("26000"), "another's prepared statement");
            expect(text(connection, "execute " + me).equals("mine"), "a prepared statement");
            execute(connection, "select pg_advisory_lock(hashtext('" + me + "'))");
            expect(text(other, "select pg_try_advisory_lock(hashtext('" + me + "'))").equals("f"), "another's lock");
            expect(text(connection, "select pg_advisory_unlock(hashtext('" + me + "'))").equals("t"), "a lock");
            execute(connection, "declare c_" + me + " cursor with hold for select generate_series(1, 3)");
            expect(number(connection, "fetch next from c_" + me) == 1, "a held cursor");
            execute(connection, "listen " + me);
            execute(other, "notify " + me + ", 'hello'");
            PGNotification[] notes = connection.unwrap(PGConnection.class).getNotifications(20_000);
            expect(notes != null && notes.length == 1 && notes[0].getParameter().equals("hello"), "a notification");
            for (String sql : List.of("close c_" + me, "drop table t_" + me, "unlisten *", "deallocate " + me, "reset all")) {
                execute(connection, sql);
            }
        }
        done("session");
    }

    private static void concurrent() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(10);
        List<Future<?>> all = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            int who = i % 3;
            all.add(threads.submit(() -> {
                try (Connection connection = connect(); PreparedStatement statement = connection.prepareStatement("select ?::int + " + who)) {
                    for (int turn = 0; turn < 50; turn++) {
                        expect(call(statement, turn) == turn + who, "concurrent");
                    }
                }
                return null;
            }));
        }
        for (Future<?> one : all) {
            one.get();
        }
        threads.shutdown();
        done("concurrent");
    }
}
