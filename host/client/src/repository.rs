//! Which models there are, what they cost, and loading and unloading them.

use cellwright_protocol::messages::config::ModelConfig;
use cellwright_protocol::messages::repository::{IndexEntry, IndexRequest, LoadRequest, UnloadRequest};
use cellwright_protocol::messages::statistics::Statistics;
use hyper::Method;

use crate::client::{Call, Client, ModelRef, name_segment};
use crate::error::ClientError;

impl Client {
    /// A model's configuration.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn model_config(&self, model: impl Into<ModelRef<'_>>) -> Result<ModelConfig, ClientError> {
        self.get(model.into().path("/config")?).await
    }

    /// What a model's requests have cost; of all models if none is named.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn statistics(&self, model: Option<ModelRef<'_>>) -> Result<Statistics, ClientError> {
        match model {
            Some(model) => self.get(model.path("/stats")?).await,
            None => self.get("/v2/models/stats").await,
        }
    }

    /// The models there are, or those that take requests.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn repository_index(&self, ready: bool) -> Result<Vec<IndexEntry>, ClientError> {
        self.answer(Call::new(Method::POST, "/v2/repository/index").json(&IndexRequest { ready })?).await
    }

    /// Has a model loaded; it takes requests when this returns.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn load(&self, model: &str) -> Result<(), ClientError> {
        let path = format!("/v2/repository/models/{}/load", name_segment(model)?);
        self.done(Call::new(Method::POST, path).json(&LoadRequest::default())?).await
    }

    /// Has a model unloaded; what it has taken is answered.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn unload(&self, model: &str) -> Result<(), ClientError> {
        let path = format!("/v2/repository/models/{}/unload", name_segment(model)?);
        self.done(Call::new(Method::POST, path).json(&UnloadRequest::default())?).await
    }
}
