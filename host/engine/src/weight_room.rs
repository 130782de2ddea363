//! Room for weights, divided among tenants: that of the machine's memory, and of each device with
//! memory of its own.
//!
//! Everything that is held counts, in the form in which it is held: weights as they were read until
//! the cells that need them are loaded, packed ones from before they are packed until they are
//! forgotten. Only what a tenant itself holds is told: what is free tells of others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_scheduler::Parts;

use crate::engine::ModelError;

/// What weights may take of one memory.
#[derive(Debug)]
pub(crate) struct WeightRoom(Mutex<Parts>);

impl WeightRoom {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Parts::new(bytes_max))))
    }

    /// A tenant has a part from now on, by its weight; none with a weight of 0.
    pub(crate) fn set_weight(&self, tenant: u32, weight: u32) {
        self.parts().set_weight(tenant, weight);
    }

    /// A grant of nothing yet.
    pub(crate) fn grant(self: &Arc<Self>, tenant: u32) -> WeightGrant {
        WeightGrant { room: self.clone(), tenant, bytes: 0 }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a memory that hold weights of a tenant, given back when dropped.
#[derive(Debug)]
pub struct WeightGrant {
    room: Arc<WeightRoom>,
    tenant: u32,
    bytes: u64,
}

impl WeightGrant {
    /// How many.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds so many bytes from now on. To hold less always succeeds.
    ///
    /// # Errors
    /// If the tenant may not have as many. Nothing has changed then.
    pub fn hold(&mut self, bytes: u64) -> Result<(), ModelError> {
        let mut parts = self.room.parts();
        match bytes.checked_sub(self.bytes) {
            Some(more) if !parts.take(self.tenant, more) => {
                return Err(ModelError::Weights { needed: bytes, held: parts.held(self.tenant).saturating_sub(self.bytes) });
            }
            Some(_) => {}
            None => parts.give_back(self.tenant, self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// How many more its tenant may have.
    pub(crate) fn free(&self) -> u64 {
        self.room.parts().available(self.tenant)
    }
}

impl Drop for WeightGrant {
    fn drop(&mut self) {
        self.room.parts().give_back(self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_learns_what_it_holds_and_nothing_of_others() {
        let room = WeightRoom::new(1000);
        [0, 1].into_iter().for_each(|tenant| room.set_weight(tenant, 1));
        let said = |grant: &mut WeightGrant, bytes| grant.hold(bytes).map_err(|error| error.to_string());
        let (mut own, mut more, mut other) = (room.grant(0), room.grant(0), room.grant(1));
        assert_eq!(said(&mut own, 300), Ok(()));
        let refused = "the model needs 500 bytes, and there is no room for them beside the 300 bytes that its tenant's models hold: \
                       unload another model, or add memory to the machine";
        assert_eq!(said(&mut more, 500), Err(refused.to_owned()));
        assert_eq!((said(&mut other, 250), said(&mut more, 500)), (Ok(()), Err(refused.to_owned())), "the same, whatever others hold");
        assert_eq!((more.bytes(), said(&mut more, 450), said(&mut other, 251).is_err()), (0, Ok(()), true));
        drop(own);
        assert_eq!((said(&mut other, 550), said(&mut more, 0), said(&mut more, 450)), (Ok(()), Ok(()), Ok(())));
    }
}
