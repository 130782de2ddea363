//! Administration: versions, tenants, keys.

use cellwright_protocol::messages::admin::{
    Activated, CreatedKey, Key, KeyList, Model, ModelList, NewKey, NewTenant, PluginFailure, PluginLog, Tenant, TenantList, TenantSettings,
};
use hyper::Method;

use crate::address::segment;
use crate::client::{Call, Client, name_segment};
use crate::error::ClientError;

impl Client {
    /// The models that the key may see, with their versions.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn models(&self) -> Result<Vec<Model>, ClientError> {
        Ok(self.get::<ModelList>("/v1/models").await?.models)
    }

    /// A model and its versions.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn model(&self, model: &str) -> Result<Model, ClientError> {
        self.get(format!("/v1/models/{}", name_segment(model)?)).await
    }

    /// How the model's plugin has failed after that time, the oldest failure first.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn plugin_log(&self, model: &str, after_ms: u64) -> Result<Vec<PluginFailure>, ClientError> {
        Ok(self.get::<PluginLog>(format!("/v1/models/{}/logs?after={after_ms}", name_segment(model)?)).await?.failures)
    }

    /// Has a version serve from now on.
    ///
    /// # Errors
    /// If the server refuses; the version that served goes on serving.
    pub async fn activate(&self, model: &str, version: u64) -> Result<Activated, ClientError> {
        let path = format!("/v1/models/{}/versions/{version}/activate", name_segment(model)?);
        self.answer(Call::new(Method::POST, path)).await
    }

    /// Has the version serve that served before this one.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn roll_back(&self, model: &str) -> Result<Activated, ClientError> {
        self.answer(Call::new(Method::POST, format!("/v1/models/{}/rollback", name_segment(model)?))).await
    }

    /// Deletes a version that does not serve.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn delete_version(&self, model: &str, version: u64) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, format!("/v1/models/{}/versions/{version}", name_segment(model)?))).await
    }

    /// Deletes a model and all its versions.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn delete_model(&self, model: &str) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, format!("/v1/models/{}", name_segment(model)?))).await
    }

    /// The tenants that the key may see.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, ClientError> {
        Ok(self.get::<TenantList>("/v1/tenants").await?.tenants)
    }

    /// One tenant.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn tenant(&self, tenant: &str) -> Result<Tenant, ClientError> {
        self.get(format!("/v1/tenants/{}", name_segment(tenant)?)).await
    }

    /// Makes a tenant.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn create_tenant(&self, tenant: &NewTenant) -> Result<Tenant, ClientError> {
        self.answer(Call::new(Method::POST, "/v1/tenants").json(tenant)?).await
    }

    /// Changes what a tenant may use; settings that are none stay as they are.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn set_tenant(&self, tenant: &str, settings: &TenantSettings) -> Result<Tenant, ClientError> {
        self.answer(Call::new(Method::PUT, format!("/v1/tenants/{}", name_segment(tenant)?)).json(settings)?).await
    }

    /// Deletes a tenant that has no models.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn delete_tenant(&self, tenant: &str) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, format!("/v1/tenants/{}", name_segment(tenant)?))).await
    }

    /// Keys, of one tenant or of all that the caller may see.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn keys(&self, tenant: Option<&str>) -> Result<Vec<Key>, ClientError> {
        let query = tenant.map_or_else(String::new, |tenant| format!("?tenant={}", segment(tenant)));
        Ok(self.get::<KeyList>(format!("/v1/keys{query}")).await?.keys)
    }

    /// Makes a key. Its secret can be had only now.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn create_key(&self, key: &NewKey) -> Result<CreatedKey, ClientError> {
        self.answer(Call::new(Method::POST, "/v1/keys").json(key)?).await
    }

    /// Makes a key useless.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn revoke_key(&self, id: &str) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, format!("/v1/keys/{}", name_segment(id)?))).await
    }
}
