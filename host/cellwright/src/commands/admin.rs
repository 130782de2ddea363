//! `keys` and `tenants`: through a server, or in a data folder that none has open.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Context;
use cellwright_client::{Client, ClientOptions};
use cellwright_command::table::table;
use cellwright_http_api::messages;
use cellwright_protocol::messages::admin::{CreatedKey, Key, NewKey, NewTenant, Scope, Tenant, TenantSettings};
use cellwright_registry as registry;
use cellwright_registry::{KeyId, Registry, TenantName};
use clap::ArgMatches;
use clap::parser::ValueSource;
use serde_json::json;

use super::remote::{block_on, connect, trust};
use super::serve::data_folder;
use crate::cli::{AdminArguments, KeyScope, KeysAction, KeysArguments, SettingsArguments, TenantsAction, TenantsArguments};

/// Where the change is made.
enum Place {
    Server(Box<Client>),
    Folder(Box<Registry>),
}

impl AdminArguments {
    /// Nobody makes a folder only to look into it, or to take something out of it. A folder that was typed goes before a server that only the
    /// environment names: whoever types it means it.
    fn place(&self, matches: &ArgMatches, may_be_new: bool) -> anyhow::Result<Place> {
        let typed = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
        anyhow::ensure!(
            !(typed("data") && typed("server")),
            "give either `--data` (the folder of a server that is not running) or `--server` (a running server), not both"
        );
        if let Some(server) = self.server.as_ref().filter(|_| !typed("data")) {
            let options = ClientOptions { key: self.key.clone(), trust: trust(self.ca.as_deref()), ..ClientOptions::default() };
            return Ok(Place::Server(Box::new(connect(server, &options)?)));
        }
        let folder = data_folder(self.data.as_deref())?;
        anyhow::ensure!(
            may_be_new || Registry::is_in(&folder),
            "there is no server's data folder at {}: name one with `--data FOLDER`, or a running server with `--server URL`",
            folder.display()
        );
        let registry = Registry::open(&folder).with_context(|| {
            format!("the data folder {} cannot be used (if its server is running, use `--server URL`)", folder.display())
        })?;
        Ok(Place::Folder(Box::new(registry)))
    }
}

pub(crate) fn keys(arguments: &KeysArguments, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let place = arguments.admin.place(matches, matches!(arguments.action, KeysAction::Create { .. }))?;
    let json = arguments.admin.json;
    let text = match &arguments.action {
        KeysAction::Create { admin, tenant, scopes, label } => {
            let (tenant, scopes) = if *admin {
                (TenantName::operator().to_string(), vec![Scope::Infer, Scope::Upload, Scope::Admin])
            } else {
                (tenant.clone(), scopes.iter().map(|scope| scope.of_protocol()).collect())
            };
            let created = place.create_key(NewKey { tenant: Some(tenant), scopes, label: label.clone() })?;
            if json {
                format!("{}\n", serde_json::to_string(&created)?)
            } else {
                let more = match &place {
                    // Whoever makes the first has none to show.
                    Place::Server(_) if arguments.admin.key.is_none() => {
                        "From now on this server requires a key: pass this one with `--key` or CELLWRIGHT_KEY.\n".to_owned()
                    }
                    Place::Server(_) => String::new(),
                    Place::Folder(_) => {
                        format!(
                            "It is valid on the server with the data folder {}.\n",
                            data_folder(arguments.admin.data.as_deref())?.display()
                        )
                    }
                };
                let CreatedKey { key, secret } = created;
                format!("{secret}\nThis is key {} of tenant {}; its secret is not shown again.\n{more}", key.id, key.tenant)
            }
        }
        KeysAction::List { tenant } => {
            let keys = place.keys(tenant.as_deref())?;
            if json { format!("{}\n", json!(keys)) } else { list_keys(&keys) }
        }
        KeysAction::Revoke { id } => {
            place.revoke_key(id)?;
            if json { format!("{}\n", json!({ "revoked": id })) } else { format!("key {id} is revoked\n") }
        }
    };
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn tenants(arguments: &TenantsArguments, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let place = arguments.admin.place(matches, matches!(arguments.action, TenantsAction::Create { .. }))?;
    let json = arguments.admin.json;
    let said = |tenant: &Tenant, what: &str| {
        if json {
            return format!("{}\n", json!(tenant));
        }
        format!("tenant {} {what}\n{}", tenant.name, list_tenants(std::slice::from_ref(tenant)))
    };
    let text = match &arguments.action {
        TenantsAction::List => {
            let tenants = place.tenants()?;
            if json { format!("{}\n", json!(tenants)) } else { list_tenants(&tenants) }
        }
        TenantsAction::Create { name, settings } => said(&place.create_tenant(name, settings.of_protocol())?, "is created"),
        TenantsAction::Set { name, settings } => said(&place.set_tenant(name, settings.of_protocol())?, "is changed"),
        TenantsAction::Delete { name } => {
            place.delete_tenant(name)?;
            if json { format!("{}\n", json!({ "deleted": name })) } else { format!("tenant {name} is deleted\n") }
        }
    };
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

impl KeyScope {
    const fn of_protocol(self) -> Scope {
        match self {
            Self::Infer => Scope::Infer,
            Self::Upload => Scope::Upload,
            Self::Admin => Scope::Admin,
        }
    }
}

impl SettingsArguments {
    fn of_protocol(&self) -> TenantSettings {
        TenantSettings {
            weight: self.weight,
            in_flight_max: self.in_flight_max,
            queued_max: self.queued_max,
            device_share: self.device_share,
            models_max: self.models_max,
            versions_max: self.versions_max,
            bytes_max: self.bytes_max,
        }
    }
}

impl Place {
    fn create_key(&self, new: NewKey) -> anyhow::Result<CreatedKey> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.create_key(&new).await?) }),
            Self::Folder(folder) => {
                let tenant = TenantName::parse(new.tenant.as_deref().unwrap_or_default())?;
                let created = folder.create_key(&tenant, messages::scopes(&new.scopes), &new.label)?;
                Ok(CreatedKey { key: messages::key(created.key), secret: created.secret })
            }
        }
    }

    fn keys(&self, tenant: Option<&str>) -> anyhow::Result<Vec<Key>> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.keys(tenant).await?) }),
            Self::Folder(folder) => {
                let tenant = tenant.map(TenantName::parse).transpose()?;
                Ok(folder.keys(tenant.as_ref())?.into_iter().map(messages::key).collect())
            }
        }
    }

    fn revoke_key(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.revoke_key(id).await?) }),
            Self::Folder(folder) => Ok(folder.revoke_key(&KeyId::new(id))?),
        }
    }

    fn tenants(&self) -> anyhow::Result<Vec<Tenant>> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.tenants().await?) }),
            Self::Folder(folder) => Ok(folder.tenants()?.into_iter().map(messages::tenant).collect()),
        }
    }

    fn create_tenant(&self, name: &str, settings: TenantSettings) -> anyhow::Result<Tenant> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.create_tenant(&NewTenant { name: name.to_owned(), settings }).await?) }),
            Self::Folder(folder) => {
                let settings = messages::changed(registry::TenantSettings::default(), &settings);
                Ok(messages::tenant(folder.create_tenant(&TenantName::parse(name)?, &settings)?))
            }
        }
    }

    fn set_tenant(&self, name: &str, settings: TenantSettings) -> anyhow::Result<Tenant> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.set_tenant(name, &settings).await?) }),
            Self::Folder(folder) => {
                let name = TenantName::parse(name)?;
                let before = folder.tenant(&name)?.with_context(|| format!("there is no tenant `{name}`"))?.settings;
                Ok(messages::tenant(folder.set_tenant(&name, &messages::changed(before, &settings))?))
            }
        }
    }

    fn delete_tenant(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Server(client) => block_on(async { Ok(client.delete_tenant(name).await?) }),
            Self::Folder(folder) => Ok(folder.delete_tenant(&TenantName::parse(name)?)?),
        }
    }
}

fn list_keys(keys: &[Key]) -> String {
    let row = |key: &Key| {
        let scopes: Vec<String> = key.scopes.iter().map(|scope| format!("{scope:?}").to_lowercase()).collect();
        vec![key.id.clone(), key.tenant.clone(), scopes.join(","), key.label.clone()]
    };
    table(&["key", "tenant", "scopes", "label"], &keys.iter().map(row).collect::<Vec<_>>())
}

fn list_tenants(tenants: &[Tenant]) -> String {
    let row = |tenant: &Tenant| {
        let settings = &tenant.settings;
        let shown = |setting: Option<u32>| setting.map(|value| value.to_string()).unwrap_or_default();
        let share = settings.device_share.map(|share| share.to_string()).unwrap_or_default();
        let calls = [settings.weight, settings.in_flight_max, settings.queued_max].map(shown);
        let bytes = settings.bytes_max.map(|bytes| bytes.to_string()).unwrap_or_default();
        let kept = [shown(settings.models_max), shown(settings.versions_max), bytes];
        [vec![tenant.name.clone()], calls.to_vec(), vec![share], kept.to_vec()].concat()
    };
    let head = ["tenant", "weight", "in flight", "queued", "device share", "models", "versions", "bytes"];
    table(&head, &tenants.iter().map(row).collect::<Vec<_>>())
}
