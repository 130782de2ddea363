//! Tenants and what each may use: the operator's business. A tenant's own key may look at its own.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use cellwright_gate::Platform;
use cellwright_protocol::messages::admin::{NewTenant, TenantList, TenantSettings};
use cellwright_registry as registry;
use cellwright_registry::{Scope, TenantName};
use http::StatusCode;

use super::message;
use crate::app::App;
use crate::auth::Caller;
use crate::messages::{changed, tenant};
use crate::refusal::Refusal;
use crate::routes::{Named, done, json, look_up, ok};

pub(in crate::routes) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    if caller.is_operator {
        caller.require(Scope::Admin)?;
    }
    look_up(&app, caller, move |platform, caller| {
        let tenants = if caller.is_operator { platform.registry().tenants()? } else { vec![find(platform, &caller.tenant)?] };
        Ok(TenantList { tenants: tenants.into_iter().map(tenant).collect() })
    })
    .await
}

pub(in crate::routes) async fn one(State(app): State<Arc<App>>, caller: Caller, named: Named) -> Result<Response, Refusal> {
    let name = parse(&named)?;
    if caller.is_operator || name != caller.tenant {
        caller.require_operator()?;
    }
    look_up(&app, caller, move |platform, _| Ok(tenant(find(platform, &name)?))).await
}

pub(in crate::routes) async fn create(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    caller.require_operator()?;
    let asked: NewTenant = message(&app, &caller, request).await?;
    let name = TenantName::parse(&asked.name).map_err(|fault| Refusal::bad_input(fault.to_string()))?;
    let settings = changed(registry::TenantSettings::default(), &asked.settings);
    caller.concerns(&name);
    let created = app.gate.blocking(move |gate| Ok::<_, Refusal>(gate.platform().create_tenant(&name, &settings)?)).await?;
    json(StatusCode::CREATED, &tenant(created))
}

pub(in crate::routes) async fn set(
    State(app): State<Arc<App>>,
    caller: Caller,
    named: Named,
    request: Request,
) -> Result<Response, Refusal> {
    caller.require_operator()?;
    let name = parse(&named)?;
    caller.concerns(&name);
    let asked: TenantSettings = message(&app, &caller, request).await?;
    let changing = app.gate.blocking(move |gate| {
        let _changing = gate.changing_tenants();
        let settings = changed(find(gate.platform(), &name)?.settings, &asked);
        Ok::<_, Refusal>(gate.platform().set_tenant(&name, &settings)?)
    });
    ok(&tenant(changing.await?))
}

pub(in crate::routes) async fn delete(State(app): State<Arc<App>>, caller: Caller, named: Named) -> Result<Response, Refusal> {
    caller.require_operator()?;
    let name = parse(&named)?;
    caller.concerns(&name);
    let deleting = app.gate.blocking(move |gate| {
        let _changing = gate.changing_tenants();
        Ok::<_, Refusal>(gate.platform().delete_tenant(&name)?)
    });
    deleting.await?;
    Ok(done())
}

fn parse(named: &Named) -> Result<TenantName, Refusal> {
    TenantName::parse(&named.0).map_err(|fault| Refusal::bad_input(fault.to_string()))
}

fn find(platform: &Platform, name: &TenantName) -> Result<registry::Tenant, Refusal> {
    let found = platform.registry().tenant(name)?;
    found.ok_or_else(|| Refusal::not_found(format!("there is no tenant `{name}`")))
}
