//! Which objects of a database lead to code that changes sessions: the part of the catalog's graph in which such code stands, as the
//! server has told it, and what follows from that. Values only.
//!
//! The server marks what *may* do something, by patterns. Here the bodies are read with more care (`SettingNames`), and what remains is
//! followed from object to object.
//!
//! Rows: `o` (object, one of its names), `d` (object, the objects whose code it runs, each behind the kind of that edge), `g` (object,
//! body: its words change the session), `e` (object, body: it runs SQL that may), `l` (object: it changes state that PostgreSQL does not tell),
//! `z`: there are too many. An object is a word of the server's, which is compared and nothing else.

use std::collections::BTreeMap;

use pgweir_sql::SettingNames;

use crate::pool::catalog::names::Names;

/// A set of effects on a session.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Effects(u8);

impl Effects {
    /// The session changes in a way that PostgreSQL tells if it is asked.
    pub(crate) const CHANGES: Effects = Effects(1);
    /// The code sets settings whose names cannot be told.
    pub(crate) const HIDES: Effects = Effects(1 << 1);
    /// The session changes in a way that PostgreSQL does not tell (`setseed`, LOAD).
    pub(crate) const UNSEEN: Effects = Effects(1 << 2);

    pub(crate) fn has(self, other: Effects) -> bool {
        self.0 & other.0 == other.0
    }

    fn and(self, other: Effects) -> Effects {
        Effects(self.0 | other.0)
    }
}

/// Effects of the code that a name leads to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Code {
    /// The effects in any statement.
    pub(crate) always: Effects,
    /// The effects in a statement that changes rows.
    pub(crate) on_change: Effects,
}

impl Code {
    fn add(&mut self, other: Code) {
        self.always = self.always.and(other.always);
        self.on_change = self.on_change.and(other.on_change);
    }

    /// The effects of an object that runs this code, by the kind of its edge.
    fn through(self, kind: u8) -> Code {
        let Code { always, on_change } = self;
        let nothing = Effects::default();
        match kind {
            // The object is, or reads, the other one.
            b'r' => self,
            // Rows of the object change: so do rows of the other one, or its code runs.
            b'w' => Code { always: nothing, on_change: always.and(on_change) },
            // Rows of the object change: rows of the other one are looked up.
            b'k' => Code { always: nothing, on_change: always },
            // A body names the other one, and may do everything with it (b).
            _ => Code { always: always.and(on_change), on_change: nothing },
        }
    }
}

#[derive(Default)]
struct Object<'a> {
    names: Vec<&'a [u8]>,
    /// The objects that run its code, by number, with the kinds of these edges.
    users: Vec<(usize, u8)>,
    code: Code,
}

/// The id of the object that stands for code which runs without being named.
const UNNAMED: &[u8] = b"0.0";

/// The id of the object that stands for code which event triggers run.
const COMMANDS: &[u8] = b"0.3";

/// Objects of the database with the effects of their code, as far as they lead to code that changes sessions.
#[derive(Default)]
pub(crate) struct Graph<'a> {
    objects: Vec<Object<'a>>,
    numbers: BTreeMap<&'a [u8], usize>,
    /// Settings of the users' own that the bodies set, letters in lower case.
    pub(crate) settings: Vec<Box<[u8]>>,
    /// Whether the server has more objects than its answer contains.
    pub(crate) is_cut: bool,
}

impl<'a> Graph<'a> {
    /// Builds the graph from the rows of an answer. Rows of other kinds are ignored.
    pub(crate) fn of(rows: &'a [Vec<Option<Box<[u8]>>>]) -> Graph<'a> {
        let mut graph = Graph::default();
        for row in rows {
            let [Some(kind), id, value] = row.as_slice() else { continue };
            graph.add_row(kind, id.as_deref().unwrap_or_default(), value.as_deref());
        }
        graph.follow();
        graph
    }

    fn add_row(&mut self, kind: &[u8], id: &'a [u8], value: Option<&'a [u8]>) {
        match kind {
            b"o" => {
                let name = value.unwrap_or_default();
                self.object(id).names.push(name);
            }
            b"d" => {
                let user = self.number(id);
                for edge in value.unwrap_or_default().split(|byte| *byte == b' ') {
                    if let Some((kind, used)) = edge.split_first() {
                        self.object(used).users.push((user, *kind));
                    }
                }
            }
            b"g" | b"e" => self.add_body(id, value, kind == b"g"),
            b"l" => self.does(id, Effects::UNSEEN),
            b"z" => self.is_cut = true,
            _ => {}
        }
    }

    fn number(&mut self, id: &'a [u8]) -> usize {
        let next = self.objects.len();
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            self.objects.push(Object::default());
        }
        number
    }

    fn object(&mut self, id: &'a [u8]) -> &mut Object<'a> {
        let number = self.number(id);
        &mut self.objects[number]
    }

    fn does(&mut self, id: &'a [u8], effects: Effects) {
        self.object(id).code.add(Code { always: effects, on_change: Effects::default() });
    }

    /// `None`: the body is too long to be told.
    fn add_body(&mut self, id: &'a [u8], body: Option<&[u8]>, changes: bool) {
        let found = body.map(SettingNames::of_body);
        let hides = found.as_ref().is_none_or(|found| found.unreadable || !found.parameters.is_empty());
        if hides {
            self.does(id, Effects::HIDES);
        }
        if hides || changes {
            self.does(id, Effects::CHANGES);
        }
        self.settings.extend(found.into_iter().flat_map(|found| found.names));
    }

    /// Passes the effects of each object on to the objects that run its code. The loop ends, because effects are only added.
    fn follow(&mut self) {
        let mut due: Vec<usize> = (0..self.objects.len()).collect();
        while let Some(number) = due.pop() {
            let Some(Object { users, code, .. }) = self.objects.get(number) else { continue };
            let code = *code;
            if code == Code::default() {
                continue;
            }
            for (user, kind) in users.clone() {
                let Some(object) = self.objects.get_mut(user) else { continue };
                let before = object.code;
                object.code.add(code.through(kind));
                if object.code != before {
                    due.push(user);
                }
            }
        }
    }

    /// The names that lead to code with this effect in any statement, and those that do so in statements that change rows.
    pub(crate) fn names(&self, effect: Effects) -> (Names, Names) {
        let of = |has: &dyn Fn(&Code) -> bool| {
            let objects = self.objects.iter().filter(|object| has(&object.code));
            Names::of(objects.flat_map(|object| object.names.iter().copied()))
        };
        (of(&|code| code.always.has(effect)), of(&|code| code.on_change.has(effect)))
    }

    /// The names that lead to code which does something to the session in any statement.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &'a [u8]> {
        let changing = self.objects.iter().filter(|object| object.code.always != Effects::default());
        changing.flat_map(|object| object.names.iter().copied())
    }

    /// The effects that any text may have.
    pub(crate) fn unnamed(&self) -> Effects {
        self.effects_of(UNNAMED)
    }

    /// The effects of each command that event triggers follow.
    pub(crate) fn commands(&self) -> Effects {
        self.effects_of(COMMANDS)
    }

    fn effects_of(&self, id: &[u8]) -> Effects {
        let object = self.numbers.get(id).and_then(|number| self.objects.get(*number));
        object.map_or(Effects::default(), |object| object.code.always.and(object.code.on_change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rows = Vec<Vec<Option<Box<[u8]>>>>;

    fn rows(of: &[(&str, &str, Option<&str>)]) -> Rows {
        let bytes = |text: &str| Box::from(text.as_bytes());
        of.iter()
            .map(|(kind, id, value)| vec![Some(bytes(kind)), Some(bytes(id)), value.map(bytes)])
            .collect()
    }

    fn named(rows: &Rows, effect: Effects, texts: &[&str]) -> (Vec<bool>, Vec<bool>) {
        let (always, on_change) = Graph::of(rows).names(effect);
        let found = |names: &Names| texts.iter().map(|text| names.are_named_in(text.as_bytes())).collect();
        (found(&always), found(&on_change))
    }

    #[test]
    fn effects_follow_the_edges() {
        let rows = rows(&[
            ("g", "f", Some("")),
            ("o", "f", Some("setter")),
            ("d", "caller", Some("bf")),
            ("o", "caller", Some("caller")),
            ("d", "trigger", Some("rf")),
            ("d", "visits", Some("wtrigger rplain")),
            ("o", "visits", Some("visits")),
            ("d", "view", Some("rvisits")),
            ("o", "view", Some("view")),
            ("d", "writer", Some("bview")),
            ("o", "writer", Some("writer")),
            ("d", "cascades", Some("wvisits")),
            ("o", "cascades", Some("cascades")),
            ("d", "looks", Some("kvisits kcaller")),
            ("o", "looks", Some("looks")),
            ("d", "only_looks", Some("kvisits")),
            ("o", "only_looks", Some("only_looks")),
            ("o", "plain", Some("plain")),
        ]);
        let names =
            ["setter", "caller", "visits", "view", "writer", "cascades", "looks", "only_looks", "plain"];
        let (always, on_change) = named(&rows, Effects::CHANGES, &names);
        assert_eq!(always, [true, true, false, false, true, false, false, false, false]);
        assert_eq!(on_change, [false, false, true, true, false, true, true, false, false]);
        assert_eq!(named(&rows, Effects::HIDES, &names).0, [false; 9]);
    }

    #[test]
    fn bodies_are_read_again() {
        let set = "begin perform set_config('App.Tenant', 'x', false); end";
        let rows = rows(&[
            ("g", "plain", Some(set)),
            ("g", "given", Some("select set_config($1, 'x', false)")),
            ("e", "runs", Some("begin execute what; end")),
            ("e", "strings", Some("declare v text; begin v := 'drop table t'; execute v; end")),
            ("e", "long", None),
            ("l", "seeds", None),
            ("d", "outer", Some("bmiddle")),
            ("d", "middle", Some("bgiven bstrings")),
            ("d", "above", Some("bstrings")),
            ("o", "plain", Some("plain")),
            ("o", "given", Some("given")),
            ("o", "runs", Some("runs")),
            ("o", "strings", Some("strings")),
            ("o", "long", Some("long")),
            ("o", "seeds", Some("seeds")),
            ("o", "outer", Some("outer")),
            ("o", "above", Some("above")),
        ]);
        let names = ["plain", "given", "runs", "strings", "long", "seeds", "outer", "above"];
        let always = |effect| named(&rows, effect, &names).0;
        assert_eq!(always(Effects::CHANGES), [true, true, true, false, true, false, true, false]);
        assert_eq!(always(Effects::HIDES), [false, true, true, false, true, false, true, false]);
        assert_eq!(always(Effects::UNSEEN), [false, false, false, false, false, true, false, false]);
        let graph = Graph::of(&rows);
        assert_eq!(graph.settings, [Box::from(&b"app.tenant"[..])]);
        assert!(
            graph.changing().eq([&b"plain"[..], b"given", b"runs", b"long", b"seeds", b"outer"])
                && !graph.is_cut
        );
    }

    #[test]
    fn no_answer_is_too_odd() {
        let long = "x".repeat(100_000);
        let edges = format!("r{}", "a rb wc  k \u{1}z ".repeat(10_000));
        let rows = rows(&[
            ("d", "a", Some("rb ra")),
            ("d", "b", Some("ra wb")),
            ("d", "nowhere", Some("r1255.99999999999999999999")),
            ("d", "a", None),
            ("d", "", Some("")),
            ("d", "many", Some(&edges)),
            ("o", "a", None),
            ("o", "b", Some(&long)),
            ("o", &long, Some("c")),
            ("g", "b", Some(&long)),
            ("?", "b", Some("c")),
            ("z", "", None),
        ]);
        let graph = Graph::of(&rows);
        assert!(graph.is_cut && graph.changing().any(|name| name == long.as_bytes()));
        let odd: Rows = vec![vec![], vec![None, None, None], vec![Some(Box::from(&b"o"[..]))], vec![None; 7]];
        assert_eq!(Graph::of(&odd).changing().count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn an_object_does_what_it_reaches(edges in proptest::collection::vec((0u8..12, 0u8..12, 0usize..4), 0..40)) {
            let text = |(user, used, kind): &(u8, u8, usize)| {
                (format!("{}", char::from(b'a' + user)), format!("{}{}", ["r", "w", "k", "b"][*kind], char::from(b'a' + used)))
            };
            let texts: Vec<_> = edges.iter().map(text).collect();
            let mut of: Vec<_> = texts.iter().map(|(user, edge)| ("d", &**user, Some(&**edge))).collect();
            of.push(("g", "a", Some("")));
            let rows = rows(&of);
            let graph = Graph::of(&rows);
            // Without care for kinds: whatever is not reached does nothing.
            let mut reached = std::collections::BTreeSet::from([0u8]);
            for _ in 0..12 {
                let more: Vec<u8> = edges.iter().filter(|edge| reached.contains(&edge.1)).map(|edge| edge.0).collect();
                reached.extend(more);
            }
            for (id, number) in &graph.numbers {
                let does = graph.objects[*number].code != Code::default();
                let may = id.first().is_some_and(|id| reached.contains(&(id - b'a')));
                let looks_only = edges.iter().any(|edge| edge.2 == 2);
                let holds = if looks_only { may || !does } else { does == may };
                proptest::prop_assert!(holds);
            }
        }
    }
}
