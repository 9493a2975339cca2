//! Tables for the terminal: columns as wide as their widest cell, numbers to the right.

/// Rows of text under a head.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    left_columns: usize,
}

impl Table {
    /// A table with these column heads, of which the first `left_columns` are text (to the left), the others numbers.
    #[must_use]
    pub(crate) fn new(head: &[&str], left_columns: usize) -> Self {
        Self { head: head.iter().map(|text| (*text).to_owned()).collect(), rows: Vec::new(), left_columns }
    }

    /// Adds a row; missing cells stay empty, cells beyond the head are left out.
    pub(crate) fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// The table as lines, each ended.
    #[must_use]
    pub(crate) fn render(&self) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = self.line(&self.head, &widths);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        text.push_str(&self.line(&rule, &widths));
        for row in &self.rows {
            text.push_str(&self.line(row, &widths));
        }
        text
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::from(" ");
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let padded = if column < self.left_columns {
                format!(" {cell:<width$} ")
            } else {
                format!(" {cell:>width$} ")
            };
            line.push_str(&padded);
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_left_and_numbers_right() {
        let mut table = Table::new(&["through", "TPS"], 1);
        table.row(vec!["direct".into(), "9".into()]);
        table.row(vec!["pgweir".into(), "12345".into()]);
        let expected = "  through    TPS\n  -------  -----\n  direct       9\n  pgweir   12345\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn short_rows_are_filled_up() {
        let mut table = Table::new(&["a", "b"], 2);
        table.row(vec!["x".into()]);
        assert!(table.render().ends_with("  x\n"));
    }
}
