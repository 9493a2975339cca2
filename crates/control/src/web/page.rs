//! The dashboard's files, which are part of the program (`build.rs` finds them in `web/dist`).

include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

/// A file of the dashboard.
#[derive(Clone, Copy)]
pub(super) struct File {
    /// The file's media type.
    pub(super) kind: &'static str,
    /// The file's contents.
    pub(super) bytes: &'static [u8],
    /// `true` if the file's name changes with its contents.
    pub(super) immutable: bool,
}

/// Returns the file at a path.
pub(super) fn file(path: &str) -> Option<File> {
    let path = if path == "/" { "/index.html" } else { path };
    let (name, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
    Some(File { kind: media_type(name), bytes, immutable: name.starts_with("/assets/") })
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete() {
        let page = file("/").expect("the page");
        let text = std::str::from_utf8(page.bytes).expect("text");
        assert!(page.kind.starts_with("text/html") && !page.immutable);
        let named = text
            .split(['"', '\''])
            .filter_map(|word| word.strip_prefix("./"))
            .filter(|word| word.contains('.'));
        let mut count = 0;
        for name in named {
            let found = file(&format!("/{name}")).unwrap_or_else(|| panic!("{name} is missing"));
            assert_ne!(found.kind, "application/octet-stream", "{name}");
            count += 1;
        }
        assert!(count >= 2, "a script and a style sheet");
        assert!(file("/../Cargo.toml").is_none() && file("").is_none());
    }
}
