//! Keys: a tenant's admin makes and ends its own, an operator everyone's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use cellwright_protocol::messages::admin::{CreatedKey, Key, KeyList, NewKey, Scope};
use cellwright_registry as registry;
use cellwright_registry::{KeyId, TenantName};
use cellwright_serving::ErrorKind;
use http::StatusCode;

use super::message;
use crate::app::App;
use crate::auth::Caller;
use crate::refusal::Refusal;
use crate::routes::{Named, done, json, ok};

pub(in crate::routes) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    caller.require(registry::Scope::Admin)?;
    let tenant = caller.tenant.clone();
    let listing = app.listing(&tenant, move |app| {
        let keys = app.host.registry().keys(caller.sees())?;
        ok(&KeyList { keys: keys.into_iter().map(key).collect() })
    });
    listing.await
}

pub(in crate::routes) async fn create(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    caller.require(registry::Scope::Admin)?;
    let asked: NewKey = message(&app, &caller, request).await?;
    let tenant = match &asked.tenant {
        Some(name) => TenantName::parse(name).map_err(|fault| Refusal::bad_input(fault.to_string()))?,
        None => caller.tenant.clone(),
    };
    if tenant != caller.tenant {
        caller.require_operator()?;
    }
    let scopes: registry::Scopes = asked.scopes.iter().map(|scope| of_message(*scope)).collect();
    // Otherwise there would be nobody who could make another, or change what concerns all.
    if app.is_keyless() && !(tenant.is_operator() && scopes.contains(registry::Scope::Admin)) {
        let sentence = "the first key closes this server to whoever has none: make an operator's with the scope `admin` first (`cellwright keys create --admin`), and this one with it";
        return Err(Refusal::new(ErrorKind::Conflict, sentence));
    }
    let created = app.blocking(move |app| {
        let created = app.host.registry().create_key(&tenant, scopes, &asked.label)?;
        app.has_a_key_now();
        Ok(created)
    });
    let created = created.await?;
    json(StatusCode::CREATED, &CreatedKey { key: key(created.key), secret: created.secret })
}

pub(in crate::routes) async fn revoke(State(app): State<Arc<App>>, caller: Caller, named: Named) -> Result<Response, Refusal> {
    caller.require(registry::Scope::Admin)?;
    let id = KeyId::new(&named.0);
    let revoking = app.blocking(move |app| {
        let registry = app.host.registry();
        // Of a key that is another's, it is not even said that it is there.
        let own = caller.is_operator || registry.keys(Some(&caller.tenant))?.iter().any(|key| key.id == id);
        if !own {
            return Err(registry::RegistryError::KeyMissing(id).into());
        }
        Ok(registry.revoke_key(&id)?)
    });
    revoking.await?;
    Ok(done())
}

fn key(key: registry::Key) -> Key {
    Key {
        id: key.id.as_str().to_owned(),
        tenant: key.tenant.into(),
        scopes: key.scopes.iter().map(to_message).collect(),
        label: key.label,
        created_ms: key.created_ms,
    }
}

fn to_message(scope: registry::Scope) -> Scope {
    match scope {
        registry::Scope::Infer => Scope::Infer,
        registry::Scope::Upload => Scope::Upload,
        registry::Scope::Admin => Scope::Admin,
    }
}

fn of_message(scope: Scope) -> registry::Scope {
    match scope {
        Scope::Infer => registry::Scope::Infer,
        Scope::Upload => registry::Scope::Upload,
        Scope::Admin => registry::Scope::Admin,
    }
}
