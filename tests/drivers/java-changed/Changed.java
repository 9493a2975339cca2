// Runs prepared statements with pgjdbc, one for each line of standard input: see test_changed_columns.py.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

public final class Changed {
    private static PreparedStatement prepare(Connection connection, String text) throws SQLException {
        return connection.prepareStatement(text);
    }

    private static Object value(PreparedStatement statement) throws SQLException {
        statement.setInt(1, 1);
        try (ResultSet row = statement.executeQuery()) {
            row.next();
            return row.getObject(2);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String where = System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        // Each statement is prepared by name, and read in binary, from its first execution on.
        String url = "jdbc:postgresql://" + where + "?prepareThreshold=-1";
        try (Connection connection = DriverManager.getConnection(url, System.getenv("PGUSER"), System.getenv("PGPASSWORD"));
                PreparedStatement read = prepare(connection, "select * from changing where a = ?");
                PreparedStatement write = prepare(connection, "insert into changing (a) values (?) returning a, b");
                PreparedStatement plain = prepare(connection, "update changing set a = ? where a = ?")) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                try {
                    Object value = 1;
                    if (line.equals("read")) {
                        value = value(read);
                    } else if (line.equals("write")) {
                        value = value(write);
                    } else {
                        plain.setInt(1, 1);
                        plain.setInt(2, 1);
                        plain.executeUpdate();
                    }
                    System.out.println("value " + value);
                } catch (SQLException fault) {
                    System.out.println("error " + fault.getSQLState());
                }
            }
        }
    }
}
