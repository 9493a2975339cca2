//! The JSON API, as docs/openapi.yaml describes it.

mod applications;
mod cache;
mod clusters;
mod connections;
mod live;
mod numbers;
mod overview;
mod pools;
pub(super) mod query;
mod readiness;
mod series;
mod settings;
mod statements;
mod tables;

pub(super) use readiness::{health, readiness};
pub(super) use tables::ShowRow;

use std::rc::Rc;

use hyper::StatusCode;
use pgweir_core::driver::Level;
use pgweir_core::mail::Rules;
use serde_json::{Value, json};

use super::WebState;
use super::access::{Reader, Role, may_any_user_sign_in};
use super::reply::{Refusal, Reply, json_reply};
use query::Query;

/// Answers a reading request.
pub(super) async fn answer(
    web: &Rc<WebState>,
    reader: &Reader,
    path: &str,
    query: &Query,
) -> Result<Reply, Refusal> {
    let value = match path.strip_prefix("/api/v1/").unwrap_or_default() {
        "overview" => overview::overview(web, reader.sees_names()),
        "live" => return live::live(web, reader),
        "pools" => pools::pools(web, reader),
        "databases" => tables::databases(web, reader).await?,
        "applications" => applications::applications(web, reader).await?,
        "users" => tables::users(web, reader).await?,
        "cache" => cache::cache(web, reader).await?,
        "clients" => connections::clients(web, reader, query).await?,
        "clusters" => clusters::clusters(web, reader).await?,
        "servers" => connections::servers(web, reader, query).await?,
        "series" => series::series(web, reader, query)?,
        "statements" => statements::statements(web, reader, query).await?,
        "percentiles" => pools::percentiles(web, reader, query)?,
        "log" => {
            need_names(reader)?;
            log_lines(web, query)?
        }
        "settings" => settings::settings(web, reader),
        _ => return Err(Refusal::NotFound("There is nothing at this address.")),
    };
    Ok(json_reply(StatusCode::OK, &value))
}

/// Returns the reader's user and rights.
pub(super) fn session(reader: &Reader, rules: &Rules) -> Value {
    json!({
        "role": match reader.role {
            Role::Anonymous => "anonymous",
            Role::Stats => "stats",
            Role::Admin => "admin",
        },
        "user": reader.user,
        "csrf": reader.csrf,
        "sees_names": reader.sees_names(),
        "may_act": reader.role == Role::Admin,
        "anonymous": rules.config.main.http_anonymous.as_str(),
        "sign_in": may_any_user_sign_in(rules),
    })
}

/// Returns the last warnings and errors, or with `level=log` all last lines; with `after` only those that are newer.
fn log_lines(web: &WebState, query: &Query) -> Result<Value, Refusal> {
    let level = match query.word("level", &["log", "warning"])? {
        Some("log") => Level::Log,
        _ => Level::Warning,
    };
    let after = query.number("after", 0, usize::MAX, 0)?;
    let lines = web.log.recent(level, u64::try_from(after).unwrap_or(u64::MAX)).into_iter().map(|line| {
        let at = line.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        json!({ "id": line.id, "time_s": at.as_secs_f64(), "level": crate::log::word(line.level).to_lowercase(), "message": line.message })
    });
    Ok(json!({ "lines": lines.collect::<Vec<_>>() }))
}

/// Refuses an answer that consists of names to readers who may not see them.
fn need_names(reader: &Reader) -> Result<(), Refusal> {
    if reader.sees_names() { Ok(()) } else { Err(Refusal::Forbidden("Sign in to see names and statements.")) }
}
