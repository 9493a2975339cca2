//! The manual page pgweir.ini(5), made from the same tables and texts as the reference page. It turns the
//! Markdown of those texts into roff (man(7)), and must never say anything by itself.

use std::fmt::Write;

use crate::pages::reference::{CACHE, CLUSTERS, DATABASES, HEAD, NODES, PEERS, ROUTES, USERS, change_word};
use crate::table::{
    CACHE_ROWS, CLUSTER_ROWS, DATABASE_ROWS, MAIN_ROWS, NODE_ROWS, Origin, PEER_ROWS, ROUTE_ROWS, Row,
    Status, USER_ROWS,
};

const NAME: &str = "pgweir.ini \\- configuration of pgweir, a PostgreSQL connection pooler";

/// Returns the page `docs/man/pgweir.ini.5`.
pub fn ini_man_page() -> String {
    let mut page = String::new();
    page.push_str(".\\\" Made from the tables in crates/settings/src/table. To write it again:\n");
    page.push_str(".\\\" UPDATE=1 cargo test -p pgweir-settings --test reference\n");
    put(&mut page, format_args!(".TH PGWEIR.INI 5 \"\" \"pgweir\" \"File formats\"\n.SH NAME\n{NAME}\n"));
    page.push_str(".SH DESCRIPTION\n");
    // The page starts after the reference page's own title, and leaves out the legend of its tables.
    let body = HEAD.split_once("-->").map_or(HEAD, |(_, body)| body);
    let body = body.split_once("\n\"not yet\"").map_or(body, |(body, _)| body);
    prose(&mut page, body);
    page.push_str(".SH [pgbouncer]\n");
    for rows in MAIN_ROWS.chunk_by(|one, next| one.group == next.group) {
        put(&mut page, format_args!(".SS {}\n", rows.first().map_or("", |row| row.group)));
        entries(&mut page, rows);
    }
    section(&mut page, DATABASES, DATABASE_ROWS);
    section(&mut page, USERS, USER_ROWS);
    section(&mut page, CLUSTERS, CLUSTER_ROWS);
    section(&mut page, NODES, NODE_ROWS);
    section(&mut page, ROUTES, ROUTE_ROWS);
    section(&mut page, CACHE, CACHE_ROWS);
    section(&mut page, PEERS, PEER_ROWS);
    page.push_str(".SH SEE ALSO\n.BR pgweir (1)\n");
    page
}

fn section<T>(page: &mut String, words: &str, rows: &[Row<T>]) {
    prose(page, words);
    entries(page, rows);
}

fn entries<T>(page: &mut String, rows: &[Row<T>]) {
    for row in rows {
        put(page, format_args!(".TP\n.B {}\n", escaped(row.name)));
        let doc = row.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        put(page, format_args!("{}\n", line(&doc)));
        let mut facts = vec![line(&format!("Takes: {}.", row.kind.describe()))];
        facts.push(match row.default {
            None => "Not set by default.".to_owned(),
            Some("") => "Default: empty.".to_owned(),
            Some(text) => line(&format!("Default: `{text}`.")),
        });
        facts.push(format!("Changes at: {}.", change_word(row.change)));
        if row.origin == Origin::Ours {
            facts.push("PgBouncer does not have it.".to_owned());
        }
        if row.status == Status::NotYet {
            facts.push("Not yet in effect.".to_owned());
        }
        put(page, format_args!(".br\n{}\n", facts.join(" ")));
    }
}

/// Writes paragraphs, headings, lists and blocks of code.
fn prose(page: &mut String, markdown: &str) {
    let mut in_code = false;
    let mut in_item = false;
    for text in markdown.lines() {
        if text.starts_with("```") {
            page.push_str(if in_code { ".EE\n.RE\n" } else { ".PP\n.RS 4\n.EX\n" });
            in_code = !in_code;
        } else if in_code {
            put(page, format_args!("{}\n", protected(&escaped(text))));
        } else if let Some(heading) = text.strip_prefix("## ") {
            let level = if heading.starts_with('[') { "SH" } else { "SS" };
            put(page, format_args!(".{level} {}\n", escaped(heading)));
        } else if let Some(item) = text.strip_prefix("- ") {
            put(page, format_args!(".IP \\(bu 2\n{}\n", line(item)));
            in_item = true;
        } else if text.is_empty() {
            if !page.ends_with(".PP\n") {
                page.push_str(".PP\n");
            }
            in_item = false;
        } else {
            put(page, format_args!("{}\n", line(if in_item { text.trim_start() } else { text })));
        }
    }
}

/// Returns a line of text in which `code` and **strong** are bold.
fn line(text: &str) -> String {
    let mut out = String::new();
    for (at, piece) in text.replace("**", "`").split('`').enumerate() {
        let piece = escaped(piece);
        match at % 2 {
            0 => out.push_str(&piece),
            _ => put(&mut out, format_args!("\\fB{piece}\\fR")),
        }
    }
    protected(&out)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Protects a dot or an apostrophe at the start of a line, which would be a roff request.
fn protected(text: &str) -> String {
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text.to_owned() }
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes everything");
}
