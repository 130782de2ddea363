//! Keys: a tenant's admin makes and ends its own, an operator everyone's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use cellwright_protocol::messages::admin::{CreatedKey, KeyList, NewKey};
use cellwright_registry::{KeyId, RegistryError, Scope, TenantName};
use http::StatusCode;

use super::message;
use crate::app::App;
use crate::auth::Caller;
use crate::messages::{key, scopes};
use crate::refusal::Refusal;
use crate::routes::{Named, done, json, look_up};

pub(in crate::routes) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    caller.require(Scope::Admin)?;
    look_up(&app, caller, move |platform, caller| {
        let keys = platform.registry().keys(caller.sees())?;
        Ok(KeyList { keys: keys.into_iter().map(key).collect() })
    })
    .await
}

pub(in crate::routes) async fn create(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Admin)?;
    let asked: NewKey = message(&app, &caller, request).await?;
    let tenant = match &asked.tenant {
        Some(name) => TenantName::parse(name).map_err(|fault| Refusal::bad_input(fault.to_string()))?,
        None => caller.tenant.clone(),
    };
    if tenant != caller.tenant {
        caller.require_operator()?;
        caller.concerns(&tenant);
    }
    let own = app.clone();
    let created = app.gate.changing(&caller.tenant, move |platform, _| {
        let created = platform.registry().create_key(&tenant, scopes(&asked.scopes), &asked.label)?;
        own.gate.require_keys();
        Ok::<_, Refusal>(created)
    });
    let created = created.await?;
    json(StatusCode::CREATED, &CreatedKey { key: key(created.key), secret: created.secret })
}

pub(in crate::routes) async fn revoke(State(app): State<Arc<App>>, caller: Caller, named: Named) -> Result<Response, Refusal> {
    caller.require(Scope::Admin)?;
    let id = KeyId::new(&named.0);
    let owner = app.gate.platform().registry().tenant_of(&id);
    match owner {
        // Of a key that is another's, it is not even said that it is there.
        Some(owner) if caller.is_operator || owner == caller.tenant => caller.concerns(&owner),
        // One that is damaged is nobody's.
        None if caller.is_operator => {}
        _ => return Err(RegistryError::KeyMissing(id).into()),
    }
    app.gate.changing(&caller.tenant, move |platform, _| Ok::<_, Refusal>(platform.registry().revoke_key(&id)?)).await?;
    Ok(done())
}
