//! Every path and method, and what each takes and answers: the table that the document and the page are made of.

/// One method of one path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) group: &'static str,
    pub(super) summary: &'static str,
    /// The scope that a key needs. None: no key is needed.
    pub(super) scope: Option<&'static str>,
    pub(super) body: Body,
    /// Name, type and meaning of each parameter.
    pub(super) query: &'static [(&'static str, &'static str, &'static str)],
    pub(super) answer: Answer,
    /// Statuses of refusals, beside those that follow from the rest.
    pub(super) refusals: &'static [u16],
}

/// What a request carries.
#[derive(Clone, Copy)]
pub(super) enum Body {
    None,
    /// A message in JSON.
    Json(&'static str),
    /// The same, or nothing.
    OptionalJson(&'static str),
    /// A message in JSON, perhaps with binary tensors behind it.
    Tensors(&'static str),
    /// An archive.
    Archive,
}

/// What a success carries.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(u16, &'static str),
    /// As JSON; as another status if the same was there before.
    JsonOr(u16, u16, &'static str),
    Tensors(&'static str),
    Events(&'static str),
    Text(&'static str),
    Empty(u16),
}

const INFER: &str = "Inference";
const SERVER: &str = "Server";
const REPOSITORY: &str = "Repository";
const MODELS: &str = "Models and versions";
const ACCESS: &str = "Tenants and keys";

const ANY: Option<&str> = Some("any scope");
const BY_INFER: Option<&str> = Some("infer");
const BY_UPLOAD: Option<&str> = Some("upload");
const BY_ADMIN: Option<&str> = Some("admin");
const BY_OPERATOR: Option<&str> = Some("admin, of the tenant `operator`");

const AFTER: (&str, &str, &str) =
    ("after", "integer", "Only failures after this time, in milliseconds since 1970: the last one's, to follow them.");
const ACTIVATE: (&str, &str, &str) =
    ("activate", "boolean", "Whether to activate the new version (true, the default) or only to store it (false).");

macro_rules! operation {
    ($method:literal $path:expr, $group:expr, $summary:literal, $scope:expr, $body:expr, $answer:expr, $refusals:expr) => {
        operation!($method $path, $group, $summary, $scope, $body, $answer, $refusals, &[])
    };
    ($method:literal $path:expr, $group:expr, $summary:literal, $scope:expr, $body:expr, $answer:expr, $refusals:expr, $query:expr) => {
        Operation {
            method: $method,
            path: $path,
            group: $group,
            summary: $summary,
            scope: $scope,
            body: $body,
            query: $query,
            answer: $answer,
            refusals: $refusals,
        }
    };
}

const GONE: &[u16] = &[404, 503];
const RUNS: &[u16] = &[404, 429, 501, 502, 503, 504];
/// An upload.
const UPLOADS: &[u16] = &[404, 409, 413, 429, 501, 502, 503];
/// What loads a version that was taken once.
const LOADS: &[u16] = &[404, 409, 429, 501, 502, 503];

macro_rules! of_model {
    ($model:literal) => {
        [
            operation!("get" $model, INFER, "What a model takes and answers", ANY, Body::None, Answer::Json(200, "ModelMetadata"), GONE),
            operation!("get" concat!($model, "/ready"), INFER, "Whether a model answers", ANY, Body::None, Answer::Json(200, "ModelReady"), GONE),
            operation!("get" concat!($model, "/config"), INFER, "A model's configuration, in Triton's format", ANY, Body::None, Answer::Json(200, "ModelConfig"), GONE),
            operation!("get" concat!($model, "/stats"), INFER, "Statistics of a model's requests", ANY, Body::None, Answer::Json(200, "Statistics"), GONE),
            operation!("post" concat!($model, "/infer"), INFER, "Run a request", BY_INFER, Body::Tensors("InferRequest"), Answer::Tensors("InferResponse"), RUNS),
            operation!("post" concat!($model, "/generate"), INFER, "Run a request in plain JSON", BY_INFER, Body::Json("GenerateRequest"), Answer::Json(200, "GenerateResponse"), RUNS),
            operation!("post" concat!($model, "/generate_stream"), INFER, "Run a request in plain JSON; the answer comes as server-sent events, one for each step of a streamed output", BY_INFER, Body::Json("GenerateRequest"), Answer::Events("GenerateResponse"), RUNS),
        ]
    };
}

/// All of them, in the order in which people read.
pub(super) fn all() -> Vec<Operation> {
    let mut all: Vec<Operation> = SERVER_OPERATIONS.into();
    all.extend(of_model!("/v2/models/{model}"));
    all.extend(of_model!("/v2/models/{model}/versions/{version}"));
    all.push(EMBEDDINGS);
    all.extend(REPOSITORY_OPERATIONS);
    all.extend(MODEL_OPERATIONS);
    all.extend(ACCESS_OPERATIONS);
    all
}

const EMBEDDINGS: Operation = operation!("post" crate::routes::EMBEDDINGS, INFER, "Embeddings of texts or tokens, in OpenAI's form, of a model whose model.toml has a table [embeddings]", BY_INFER, Body::Json("EmbeddingsRequest"), Answer::Json(200, "EmbeddingsResponse"), RUNS);

const SERVER_OPERATIONS: [Operation; 7] = [
    operation!("get" "/v2", SERVER, "What this server is", None, Body::None, Answer::Json(200, "ServerMetadata"), &[]),
    operation!("get" "/v2/health/live", SERVER, "Whether the server is alive", None, Body::None, Answer::Json(200, "ServerLive"), &[]),
    operation!("get" "/v2/health/ready", SERVER, "Whether the server answers requests", None, Body::None, Answer::Json(200, "ServerReady"), &[503]),
    operation!("get" "/v2/models/stats", SERVER, "Statistics of all models' requests", ANY, Body::None, Answer::Json(200, "Statistics"), &[]),
    operation!("get" "/metrics", SERVER, "Metrics for Prometheus: an operator's key sees all of them, a tenant's key its own", ANY, Body::None, Answer::Text("text/plain"), &[]),
    operation!("get" "/openapi.json", SERVER, "This description", None, Body::None, Answer::Text("application/json"), &[]),
    operation!("get" "/docs", SERVER, "This description for people", None, Body::None, Answer::Text("text/html"), &[]),
];

const REPOSITORY_OPERATIONS: [Operation; 3] = [
    operation!("post" "/v2/repository/index", REPOSITORY, "List models and whether they serve", ANY, Body::OptionalJson("IndexRequest"), Answer::Json(200, "Index"), &[]),
    operation!("post" "/v2/repository/models/{model}/load", REPOSITORY, "Load a model, so that its active version serves", BY_UPLOAD, Body::OptionalJson("LoadRequest"), Answer::Empty(200), LOADS),
    operation!("post" "/v2/repository/models/{model}/unload", REPOSITORY, "Unload a model, so that it does not serve", BY_UPLOAD, Body::OptionalJson("UnloadRequest"), Answer::Empty(200), &[404, 429, 503]),
];

const MODEL_OPERATIONS: [Operation; 8] = [
    operation!("get" "/v1/models", MODELS, "The models and their versions", ANY, Body::None, Answer::Json(200, "ModelList"), &[429]),
    operation!("get" "/v1/models/{model}", MODELS, "A model and its versions", ANY, Body::None, Answer::Json(200, "Model"), &[404, 429]),
    operation!("put" "/v1/models/{model}", MODELS, "Upload a bundle (.tar or .tar.zst) as the model's next version; its samples must pass", BY_UPLOAD, Body::Archive, Answer::JsonOr(201, 200, "Uploaded"), UPLOADS, &[ACTIVATE]),
    operation!("delete" "/v1/models/{model}", MODELS, "Delete a model and all its versions", BY_UPLOAD, Body::None, Answer::Empty(204), &[404, 429, 503]),
    operation!("get" "/v1/models/{model}/logs", MODELS, "How a model's plugin has failed lately", BY_UPLOAD, Body::None, Answer::Json(200, "PluginLog"), &[404, 429, 503], &[AFTER]),
    operation!("post" "/v1/models/{model}/rollback", MODELS, "Activate the version that was active before", BY_UPLOAD, Body::None, Answer::Json(200, "Activated"), LOADS),
    operation!("delete" "/v1/models/{model}/versions/{version}", MODELS, "Delete a version that is not active", BY_UPLOAD, Body::None, Answer::Empty(204), &[404, 409, 429, 503]),
    operation!("post" "/v1/models/{model}/versions/{version}/activate", MODELS, "Activate a version, which then serves", BY_UPLOAD, Body::None, Answer::Json(200, "Activated"), LOADS),
];

const ACCESS_OPERATIONS: [Operation; 8] = [
    operation!("get" "/v1/tenants", ACCESS, "The tenants and their limits; a tenant's key sees its own", ANY, Body::None, Answer::Json(200, "TenantList"), &[429]),
    operation!("post" "/v1/tenants", ACCESS, "Create a tenant", BY_OPERATOR, Body::Json("NewTenant"), Answer::Json(201, "Tenant"), &[409, 503]),
    operation!("get" "/v1/tenants/{tenant}", ACCESS, "A tenant and its limits; a tenant's key sees its own", ANY, Body::None, Answer::Json(200, "Tenant"), &[404, 429]),
    operation!("put" "/v1/tenants/{tenant}", ACCESS, "Change a tenant's limits", BY_OPERATOR, Body::Json("TenantSettings"), Answer::Json(200, "Tenant"), &[404, 503]),
    operation!("delete" "/v1/tenants/{tenant}", ACCESS, "Delete a tenant that has no models, and its keys", BY_OPERATOR, Body::None, Answer::Empty(204), &[404, 409, 503]),
    operation!("get" "/v1/keys", ACCESS, "The keys", BY_ADMIN, Body::None, Answer::Json(200, "KeyList"), &[429]),
    operation!("post" "/v1/keys", ACCESS, "Create a key; from the first one on, the server requires a key", BY_ADMIN, Body::Json("NewKey"), Answer::Json(201, "CreatedKey"), &[404, 409, 429, 503]),
    operation!("delete" "/v1/keys/{key}", ACCESS, "Revoke a key", BY_ADMIN, Body::None, Answer::Empty(204), &[404, 429, 503]),
];
