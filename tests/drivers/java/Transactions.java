// Transactions of pgjdbc on a cluster. Each prints what it has read.
//
// Where to connect to comes from libpq's environment variables. Arguments: what to do, the number of transactions, and pgjdbc's
// parameters (`readOnlyMode=always`).

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

public final class Transactions {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        String where = System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        String url = "jdbc:postgresql://" + where + "?" + (arguments.length > 2 ? arguments[2] : "");
        try (Connection connection = DriverManager.getConnection(url, System.getenv("PGUSER"), System.getenv("PGPASSWORD"))) {
            switch (arguments[0]) {
                case "read-only":
                    connection.setReadOnly(true);
                    read(connection, count);
                    break;
                case "undeclared":
                    read(connection, count);
                    break;
                case "portions":
                    portions(connection, count);
                    break;
                default:
                    throw new AssertionError(arguments[0]);
            }
        }
    }

    private static void read(Connection connection, int count) throws SQLException {
        connection.setAutoCommit(false);
        try (PreparedStatement select = connection.prepareStatement("select sum(a) from shop where a <= ?")) {
            for (int turn = 0; turn < count; turn++) {
                select.setInt(1, 3);
                try (ResultSet rows = select.executeQuery()) {
                    rows.next();
                    System.out.println("sum " + rows.getInt(1));
                }
                connection.commit();
            }
        }
    }

    /** Rows in portions of two, and a change between the first and the second portion. */
    private static void portions(Connection connection, int count) throws SQLException {
        connection.setAutoCommit(false);
        for (int turn = 0; turn < count; turn++) {
            try (Statement other = connection.createStatement();
                    PreparedStatement select = connection.prepareStatement("select n from generate_series(1, 9) as s(n)")) {
                try (ResultSet rows = other.executeQuery("select a from shop")) {
                    rows.next();
                }
                select.setFetchSize(2);
                int sum = 0;
                try (ResultSet rows = select.executeQuery()) {
                    while (rows.next()) {
                        sum += rows.getInt(1);
                        if (rows.getInt(1) == 2) {
                            other.executeUpdate("insert into shop values (" + (1000 + turn) + ")");
                        }
                    }
                }
                System.out.println("sum " + sum);
            }
            connection.commit();
        }
    }
}
