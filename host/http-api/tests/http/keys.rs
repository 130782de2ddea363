//! Who may do what.

use cellwright_http_api::{BindError, Server, ServerOptions};
use cellwright_registry::{Scope, TenantName, TenantSettings};
use serde_json::json;

use crate::fake::Fake;
use crate::harness::{Answer, Running};

const ECHO: &[u8] = br#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#;

/// A server with keys: an operator's, one with every scope of `default`, one that may only infer, and one of another tenant.
struct Keyed {
    server: Running,
    operator: String,
    own: String,
    infer: String,
    other: String,
}

impl Keyed {
    fn start() -> Self {
        let server = Running::start();
        // The first key closes the server; it is made as a user would.
        let created = server.post("/v1/keys", r#"{"tenant":"operator","scopes":["infer","upload","admin"],"label":"first"}"#);
        assert_eq!(created.status, 201, "{}", created.text());
        let operator = created.json()["secret"].as_str().unwrap().to_owned();
        let registry = cellwright_http_api::Host::registry(&*server.host);
        let other = TenantName::parse("other").unwrap();
        registry.create_tenant(&other, &TenantSettings::default()).unwrap();
        let default = TenantName::default_tenant();
        let key = |tenant: &TenantName, scopes: &[Scope]| registry.create_key(tenant, scopes.iter().copied().collect(), "").unwrap().secret;
        let own = key(&default, &[Scope::Infer, Scope::Upload, Scope::Admin]);
        let (infer, other) = (key(&default, &[Scope::Infer]), key(&other, &[Scope::Infer, Scope::Upload, Scope::Admin]));
        Self { server, operator, own, infer, other }
    }

    fn send(&self, key: &str, method: &str, path: &str, body: &[u8]) -> Answer {
        self.server.send(method, path, &[("authorization", &format!("Bearer {key}"))], body)
    }
}

#[test]
fn a_server_without_keys_listens_on_loopback_only() {
    let folder = tempfile::tempdir().unwrap();
    let host = std::sync::Arc::new(Fake::new(folder.path()));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = ServerOptions { addresses: vec!["0.0.0.0:0".parse().unwrap()], ..ServerOptions::default() };
    let error = runtime.block_on(Server::bind(options.clone(), host.clone())).unwrap_err();
    assert!(matches!(error, BindError::NoKeys(_)) && error.to_string().contains("no key exists"), "{error}");
    let registry = cellwright_http_api::Host::registry(&*host);
    let key = registry.create_key(&TenantName::operator(), [Scope::Admin].into_iter().collect(), "").unwrap().key;
    assert!(runtime.block_on(Server::bind(options.clone(), host.clone())).is_ok());
    // Whoever ended the last key did not mean to open the server.
    registry.revoke_key(&key.id).unwrap();
    assert!(runtime.block_on(Server::bind(options, host)).is_ok());
}

#[test]
fn the_first_key_is_an_operators() {
    let server = Running::start();
    for tenant in ["default", "operator"] {
        let first = server.post("/v1/keys", &format!(r#"{{"tenant":"{tenant}","scopes":["infer"],"label":""}}"#));
        first.refused(409, "make an operator's with the scope `admin` first");
    }
    let all = server.post("/v1/keys", r#"{"tenant":"default","scopes":["infer","upload","admin"],"label":""}"#);
    all.refused(409, "make an operator's with the scope `admin` first");
    assert_eq!(server.get("/v1/models").status, 200, "it is open");
    assert_eq!(server.post("/v1/keys", r#"{"tenant":"operator","scopes":["admin"],"label":""}"#).status, 201);
    assert_eq!(server.get("/v1/models").status, 401);
}

#[test]
fn without_keys_pages_of_other_sites_are_refused() {
    let server = Running::start();
    let send = |name, value| server.send("GET", "/v1/models", &[(name, value)], b"");
    assert_eq!(send("origin", "http://localhost:3000").status, 200);
    send("origin", "https://example.org").refused(403, "this machine only");
    send("origin", "null").refused(403, "this machine only");
    let rebound = server.raw(b"GET /v1/models HTTP/1.1\r\nhost: evil.example.org\r\nconnection: close\r\n\r\n");
    rebound.refused(403, "this machine only");
}

#[test]
fn a_key_is_asked_for_once_there_is_one() {
    let keyed = Keyed::start();
    let answer = keyed.server.send("POST", "/v2/models/echo/infer", &[], ECHO);
    answer.refused(401, "Authorization: Bearer KEY");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    keyed.send("cw_none_x", "POST", "/v2/models/echo/infer", ECHO).refused(401, "not known");
    assert_eq!(keyed.send(&keyed.infer, "POST", "/v2/models/echo/infer", ECHO).status, 200);
    for open in ["/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"] {
        assert_eq!(keyed.server.get(open).status, 200, "{open}");
    }
}

#[test]
fn scopes_are_kept() {
    let keyed = Keyed::start();
    for (method, path) in [
        ("PUT", "/v1/models/m"),
        ("DELETE", "/v1/models/m"),
        ("POST", "/v1/models/m/rollback"),
        ("POST", "/v1/models/m/versions/1/activate"),
        ("DELETE", "/v1/models/m/versions/1"),
        ("POST", "/v2/repository/models/echo/unload"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/tenants"),
    ] {
        keyed.send(&keyed.infer, method, path, b"").refused(403, "needs a key with the scope");
    }
    keyed.send(&keyed.own, "GET", "/v1/tenants", b"").refused(403, "operator");
    keyed.send(&keyed.own, "PUT", "/v1/tenants/default", b"{}").refused(403, "operator");
    assert_eq!(keyed.send(&keyed.own, "GET", "/v1/tenants/default", b"").status, 200);
}

#[test]
fn tenants_do_not_see_one_another() {
    let keyed = Keyed::start();
    keyed.send(&keyed.other, "POST", "/v2/models/echo/infer", ECHO).refused(404, "no model `echo`");
    assert_eq!(keyed.send(&keyed.other, "POST", "/v2/repository/index", b"").json(), json!([]));
    assert!(!keyed.send(&keyed.other, "GET", "/metrics", b"").text().contains("echo"));
    keyed.send(&keyed.other, "POST", "/v2/models/echo/infer?tenant=default", ECHO).refused(403, "not tenant `default`'s");
    keyed.send(&keyed.other, "GET", "/v1/tenants/default", b"").refused(403, "operator");
    // Neither its keys, nor whether there are any.
    let keys = keyed.send(&keyed.own, "GET", "/v1/keys", b"").json();
    let id = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    keyed.send(&keyed.other, "DELETE", &format!("/v1/keys/{id}"), b"").refused(404, "no key");
    keyed.send(&keyed.other, "POST", "/v1/keys", br#"{"tenant":"default","scopes":["infer"]}"#).refused(403, "operator");
    let metrics = keyed.send(&keyed.own, "GET", "/metrics", b"").text();
    assert!(metrics.contains("echo") && !metrics.contains("cellwright_http"), "{metrics}");
}

#[test]
fn an_operator_sees_and_stands_for_everyone() {
    let keyed = Keyed::start();
    assert_eq!(keyed.send(&keyed.operator, "POST", "/v2/models/echo/infer", ECHO).status, 200);
    keyed.send(&keyed.operator, "POST", "/v2/models/echo/infer?tenant=other", ECHO).refused(404, "no model");
    assert!(keyed.send(&keyed.operator, "GET", "/metrics", b"").text().contains("cellwright_http_connections"));
    assert_eq!(keyed.send(&keyed.operator, "GET", "/v1/tenants", b"").json()["tenants"].as_array().map(Vec::len), Some(3));
    let keys = keyed.send(&keyed.operator, "GET", "/v1/keys", b"").json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(4));
    assert!(!keys.to_string().contains("secret"));
}

#[test]
fn a_key_that_was_ended_opens_nothing() {
    let keyed = Keyed::start();
    let created = keyed.send(&keyed.own, "POST", "/v1/keys", br#"{"scopes":["infer"],"label":"short"}"#).json();
    let (id, secret) = (created["key"]["id"].as_str().unwrap(), created["secret"].as_str().unwrap());
    assert_eq!(keyed.send(secret, "GET", "/v2/models/echo", b"").status, 200);
    assert_eq!(keyed.send(&keyed.own, "DELETE", &format!("/v1/keys/{id}"), b"").status, 204);
    keyed.send(secret, "GET", "/v2/models/echo", b"").refused(401, "revoked");
}
