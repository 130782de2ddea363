//! Who may do what.

use cellwright_http_api::{BindError, ServerOptions};
use cellwright_registry::{Scope, TenantName};
use cellwright_tests::devices::Gate;
use cellwright_tests::platform::other_tenant;
use serde_json::json;

use super::harness::{Answer, Running, bind, platform};
use super::models::INFER;

const SUM: &[u8] = INFER.as_bytes();

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
        let (registry, other) = (server.platform.registry(), other_tenant(&server.platform, "other"));
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
    let platform = platform(folder.path(), &Gate::default(), &Gate::default());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = ServerOptions { addresses: vec!["0.0.0.0:0".parse().unwrap()], ..ServerOptions::default() };
    let error = runtime.block_on(bind(options.clone(), &platform)).unwrap_err();
    assert!(matches!(error, BindError::NoKeys(_)) && error.to_string().contains("no key exists"), "{error}");
    let registry = platform.registry();
    let key = registry.create_key(&TenantName::operator(), [Scope::Admin].into_iter().collect(), "").unwrap().key;
    assert!(runtime.block_on(bind(options.clone(), &platform)).is_ok());
    // Whoever ended the last key did not mean to open the server.
    registry.revoke_key(&key.id).unwrap();
    assert!(runtime.block_on(bind(options, &platform)).is_ok());
}

#[test]
fn the_first_key_is_an_operators() {
    let server = Running::start();
    for tenant in ["default", "operator"] {
        let first = server.post("/v1/keys", &format!(r#"{{"tenant":"{tenant}","scopes":["infer"],"label":""}}"#));
        first.refused(409, "the first key must be an operator's key with the scope `admin`");
    }
    let all = server.post("/v1/keys", r#"{"tenant":"default","scopes":["infer","upload","admin"],"label":""}"#);
    all.refused(409, "the first key must be an operator's key with the scope `admin`");
    assert_eq!(server.get("/v1/models").status, 200, "it is open");
    assert_eq!(server.post("/v1/keys", r#"{"tenant":"operator","scopes":["admin"],"label":""}"#).status, 201);
    assert_eq!(server.get("/v1/models").status, 401);
}

#[test]
fn without_keys_pages_of_other_sites_are_refused() {
    let server = Running::start();
    let send = |name, value| server.send("GET", "/v1/models", &[(name, value)], b"");
    assert_eq!(send("origin", "http://localhost:3000").status, 200);
    send("origin", "https://example.org").refused(403, "a server without keys");
    send("origin", "null").refused(403, "a server without keys");
    let rebound = server.raw(b"GET /v1/models HTTP/1.1\r\nhost: evil.example.org\r\nconnection: close\r\n\r\n");
    rebound.refused(403, "a server without keys");
}

#[test]
fn a_key_is_asked_for_once_there_is_one() {
    let keyed = Keyed::start();
    let answer = keyed.server.send("POST", "/v2/models/sums/infer", &[], SUM);
    answer.refused(401, "Authorization: Bearer KEY");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    keyed.send("cw_none_x", "POST", "/v2/models/sums/infer", SUM).refused(401, "unknown");
    assert_eq!(keyed.send(&keyed.infer, "POST", "/v2/models/sums/infer", SUM).status, 200);
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
        ("GET", "/v1/models/m/logs"),
        ("POST", "/v1/models/m/rollback"),
        ("POST", "/v1/models/m/versions/1/activate"),
        ("DELETE", "/v1/models/m/versions/1"),
        ("POST", "/v2/repository/models/sums/unload"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/tenants/other"),
    ] {
        keyed.send(&keyed.infer, method, path, b"").refused(403, "needs a key with the scope");
    }
    keyed.send(&keyed.infer, "PUT", "/v1/tenants/default", b"{}").refused(403, "needs a key with the scope");
    keyed.send(&keyed.own, "PUT", "/v1/tenants/default", b"{}").refused(403, "operator");
    for key in [&keyed.own, &keyed.infer] {
        let own = keyed.send(key, "GET", "/v1/tenants/default", b"").json();
        assert_eq!((&own["name"], own["settings"]["in_flight_max"].is_u64()), (&json!("default"), true));
        assert_eq!(keyed.send(key, "GET", "/v1/tenants", b"").json()["tenants"], json!([own]), "its own limits, and nobody else's");
    }
}

#[test]
fn tenants_do_not_see_one_another() {
    let keyed = Keyed::start();
    keyed.send(&keyed.other, "POST", "/v2/models/sums/infer", SUM).refused(404, "no model `sums`");
    assert_eq!(keyed.send(&keyed.other, "POST", "/v2/repository/index", b"").json(), json!([]));
    assert!(!keyed.send(&keyed.other, "GET", "/metrics", b"").text().contains("sums"));
    keyed.send(&keyed.other, "GET", "/v1/models/sums/logs", b"").refused(404, "no model `sums`");
    assert_eq!(keyed.send(&keyed.own, "GET", "/v1/models/sums/logs", b"").json(), json!({ "failures": [] }));
    keyed.send(&keyed.own, "GET", "/v1/models/sums/logs?after=-1", b"").refused(400, "`after` takes a whole number from 0");
    keyed.send(&keyed.other, "POST", "/v2/models/sums/infer?tenant=default", SUM).refused(403, "does not belong to tenant `default`");
    keyed.send(&keyed.other, "GET", "/v1/tenants/default", b"").refused(403, "operator");
    // Neither its keys, nor whether there are any.
    let keys = keyed.send(&keyed.own, "GET", "/v1/keys", b"").json();
    let id = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    keyed.send(&keyed.other, "DELETE", &format!("/v1/keys/{id}"), b"").refused(404, "no key");
    keyed.send(&keyed.other, "POST", "/v1/keys", br#"{"tenant":"default","scopes":["infer"]}"#).refused(403, "operator");
    let metrics = keyed.send(&keyed.own, "GET", "/metrics", b"").text();
    assert!(metrics.contains("sums") && !metrics.contains("cellwright_http"), "{metrics}");
}

#[test]
fn an_operator_sees_and_stands_for_everyone() {
    let keyed = Keyed::start();
    assert_eq!(keyed.send(&keyed.operator, "POST", "/v2/models/sums/infer", SUM).status, 200);
    keyed.send(&keyed.operator, "POST", "/v2/models/sums/infer?tenant=other", SUM).refused(404, "no model");
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
    assert_eq!(keyed.send(secret, "GET", "/v2/models/sums", b"").status, 200);
    assert_eq!(keyed.send(&keyed.own, "DELETE", &format!("/v1/keys/{id}"), b"").status, 204);
    keyed.send(secret, "GET", "/v2/models/sums", b"").refused(401, "revoked");
}
