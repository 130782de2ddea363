// cublasLt's library, as far as this crate calls it: loops on the CPU, and as strict as the real one where this crate could get it wrong.
//
// It queues on the streams of the driver's library that stands in (`libcuda.cpp`), which must have been loaded before. FAKE_CUDA says what is wrong with it:
// `no-plans` (the heuristic finds nothing), `old-library`. Built with LACKING it lacks a function.
#include <dlfcn.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, COMPUTE_F32 = 68, TRANSPOSED = 1 };
// What it marks its algorithms with.
constexpr uint64_t ALGORITHM = 0x6c617265;

struct Layout { int kind; uint64_t rows, columns; int64_t leading; };
struct Description { int first = 0; };
struct Preference { uint64_t workspace = 0; };
struct Algorithm { uint64_t data[8]; };
struct Result { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };
static_assert(sizeof(Result) == 96, "as cublasLtMatmulHeuristicResult_t");

std::set<const void*> there;  // of whatever was made

bool is_wrong(const char* how) {
    const char* said = std::getenv("FAKE_CUDA");
    return said && std::string(said) == how;
}
template <class T> int make(T** at, const T& value) {
    *at = new T(value);
    there.insert(*at);
    return SUCCESS;
}
template <class T> int destroy(T* one) {
    if (there.erase(one) != 1) return INVALID_VALUE;
    delete one;
    return SUCCESS;
}
template <class Function> Function of_driver(const char* name) {
    void* library = dlopen("libcuda.so", RTLD_NOW);
    return reinterpret_cast<Function>(library ? dlsym(library, name) : nullptr);
}

// d of `rows` by `columns`, column by column, of a given so that its columns are d's rows.
struct Product {
    uint64_t a, b, d, rows, columns, k, workspace, workspace_bytes;
};
void run(const void* taken) {
    Product p;
    std::memcpy(&p, taken, sizeof p);
    std::memset(reinterpret_cast<void*>(p.workspace), 0xFF, p.workspace_bytes);
    const uint16_t *a = reinterpret_cast<const uint16_t*>(p.a), *b = reinterpret_cast<const uint16_t*>(p.b);
    const auto number = [](uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); };
    for (uint64_t column = 0; column < p.columns; ++column) {
        for (uint64_t row = 0; row < p.rows; ++row) {
            float sum = 0;
            for (uint64_t k = 0; k < p.k; ++k) sum += number(a[row * p.k + k]) * number(b[column * p.k + k]);
            reinterpret_cast<float*>(p.d)[column * p.rows + row] = sum;
        }
    }
}

// Whether the four are those of a product of bf16, with rows of 16 bytes.
bool fit(const Description* product, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
    const auto whole = [](const Layout* layout) { return layout->leading == static_cast<int64_t>(layout->rows) && layout->rows && layout->columns; };
    return there.count(product) && product->first == TRANSPOSED && there.count(a) && there.count(b) && there.count(c) && there.count(d) && whole(a) &&
           whole(b) && whole(d) && a->kind == BF16 && b->kind == BF16 && c->kind == F32 && d->kind == F32 && a->rows == b->rows &&
           a->columns == d->rows && b->columns == d->columns && c->rows == d->rows && c->columns == d->columns && a->rows % 8 == 0 && d->rows % 4 == 0;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return is_wrong("old-library") ? 120304 : 130002; }
const char* cublasLtGetStatusString(int status) { return status == INVALID_VALUE ? "an invalid value" : "an error"; }
int cublasLtCreate(int** handle) { return make(handle, 1); }
int cublasLtDestroy(int* handle) { return destroy(handle); }
int cublasLtMatmulDescCreate(Description** product, int sums, int scales) {
    return sums == COMPUTE_F32 && scales == F32 ? make(product, Description{}) : NOT_SUPPORTED;
}
int cublasLtMatmulDescDestroy(Description* product) { return destroy(product); }
int cublasLtMatmulDescSetAttribute(Description* product, int attribute, const void* value, size_t bytes) {
    if (!there.count(product) || attribute != 3 || bytes != 4) return INVALID_VALUE;
    std::memcpy(&product->first, value, bytes);
    return SUCCESS;
}
int cublasLtMatrixLayoutCreate(Layout** layout, int kind, uint64_t rows, uint64_t columns, int64_t leading) {
    return make(layout, Layout{kind, rows, columns, leading});
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }
int cublasLtMatmulPreferenceCreate(Preference** preference) { return make(preference, Preference{}); }
int cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    if (!there.count(preference) || attribute != 1 || bytes != 8) return INVALID_VALUE;
    std::memcpy(&preference->workspace, value, bytes);
    return SUCCESS;
}
int cublasLtMatmulAlgoGetHeuristic(int* handle, Description* product, Layout* a, Layout* b, Layout* c, Layout* d, Preference* preference, int most,
                                   Result* results, int* count) {
    *count = 0;
    if (!there.count(handle) || !there.count(preference) || !fit(product, a, b, c, d) || most < 3) return INVALID_VALUE;
    if (is_wrong("no-plans")) return NOT_SUPPORTED;
    // One that works, one that says itself that it does not, and one that wants more than it was told to.
    results[0] = {{{ALGORITHM, d->columns}}, preference->workspace < 512 ? size_t{0} : size_t{512}, SUCCESS, 1.0f, {}};
    results[1] = {{{0}}, 0, NOT_SUPPORTED, 1.0f, {}};
    results[2] = {{{0}}, preference->workspace + 1, SUCCESS, 1.0f, {}};
    *count = 3;
    return SUCCESS;
}
#ifndef LACKING
int cublasLtMatmul(int* handle, Description* product, const float* alpha, uint64_t a, Layout* as, uint64_t b, Layout* bs, const float* beta, uint64_t c,
                   Layout* cs, uint64_t d, Layout* ds, const Algorithm* algorithm, uint64_t workspace, size_t workspace_bytes, void* stream) {
    static const auto queue = of_driver<int (*)(void*, void (*)(const void*), const void*, size_t)>("fake_queue");
    static const auto within = of_driver<int (*)(uint64_t, uint64_t)>("fake_within");
    if (!there.count(handle) || !fit(product, as, bs, cs, ds) || *alpha != 1 || *beta != 0 || c != d) return INVALID_VALUE;
    // Without an algorithm the real one asks its heuristic, which must not be asked here; one of another shape is refused.
    if (!algorithm || algorithm->data[0] != ALGORITHM || algorithm->data[1] != ds->columns) return INVALID_VALUE;
    const uint64_t k = as->rows, rows = ds->rows, columns = ds->columns;
    if (!within(a, rows * k * 2) || !within(b, columns * k * 2) || !within(d, rows * columns * 4)) return INVALID_VALUE;
    if (workspace_bytes && !within(workspace, workspace_bytes)) return INVALID_VALUE;
    const Product taken{a, b, d, rows, columns, k, workspace, workspace_bytes};
    return queue(stream, run, &taken, sizeof taken) ? EXECUTION_FAILED : SUCCESS;
}
#endif

}  // extern "C"
