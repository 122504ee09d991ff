#include "cuda/numerics/cublas_check.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>

#include "cuda/device_buffer.h"

namespace touchstone::cuda {

namespace {

constexpr size_t workspace_bytes = size_t{32} << 20;

struct CloseLibrary {
    void operator()(void* library) const { dlclose(library); }
};

/// libcublasLt by the loader's search, then from the toolkit that this was built with.
std::unique_ptr<void, CloseLibrary> open_library() {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        library =
            dlopen(fmt::format("{}/{}", TOUCHSTONE_CUDA_LIBRARIES, name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* error = dlerror();
        throw std::runtime_error(fmt::format("cannot open {}: {}", name, error ? error : "no reason given"));
    }
    return std::unique_ptr<void, CloseLibrary>(library);
}

template <class Function>
void load(void* library, const char* name, Function& function) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr) throw std::runtime_error(fmt::format("libcublasLt has no {}", name));
    function = reinterpret_cast<Function>(symbol);
}

void check_cublas(cublasStatus_t status, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error(
        fmt::format("{} failed at {}:{}: cublasStatus_t {}", call, file, line, static_cast<int>(status)));
}

/// A handle of cuBLASLt that its own destroy function frees.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

struct Stream {
    cudaStream_t stream = nullptr;
    Stream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
    ~Stream() { cudaStreamDestroy(stream); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
};

struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

/// A function of the driver, which programs do not link: it is absent where there is no GPU.
template <class Function>
Function driver_function(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion(name, &function, 12030, cudaEnableDefault, &found), name);
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}

/// The name of the kernel that a graph's kernel node launches.
std::string kernel_name(cudaGraphNode_t node) {
    using GetParams = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
    static const auto get_params = driver_function<GetParams>("cuGraphKernelNodeGetParams");
    static const auto function_name =
        driver_function<CUresult (*)(const char**, CUfunction)>("cuFuncGetName");
    static const auto library_name = driver_function<CUresult (*)(const char**, CUkernel)>("cuKernelGetName");
    CUDA_KERNEL_NODE_PARAMS params{};
    const char* name = nullptr;
    if (get_params == nullptr || get_params(node, &params) != CUDA_SUCCESS) return "a kernel of unknown name";
    if (params.func != nullptr && function_name != nullptr &&
        function_name(&name, params.func) == CUDA_SUCCESS)
        return name;
    if (params.kern != nullptr && library_name != nullptr && library_name(&name, params.kern) == CUDA_SUCCESS)
        return name;
    return "a kernel of unknown name";
}

/// A kernel's name without the arguments and template arguments of a C++ one.
std::string short_name(const std::string& name) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> demangled(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
    if (!demangled) return name;
    std::string readable = demangled.get();
    if (readable.starts_with("void ")) readable.erase(0, 5);
    return readable.substr(0, readable.find_first_of("<("));
}

std::string kernel_names(cudaGraph_t graph) {
    size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
    std::string names;
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type{};
        check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
        if (type == cudaGraphNodeTypeKernel)
            names += (names.empty() ? "" : " + ") + short_name(kernel_name(node));
    }
    return names.empty() ? "none captured" : names;
}

std::string scheme_name(uint32_t scheme) {
    switch (scheme) {
        case CUBLASLT_REDUCTION_SCHEME_NONE: return "none";
        case CUBLASLT_REDUCTION_SCHEME_INPLACE: return "in place";
        case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: return "compute type";
        case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE: return "output type";
        default: return fmt::format("scheme {}", scheme);
    }
}

}  // namespace

/// The functions that are used, with the types of cublasLt.h.
struct CublasLt::Library {
    std::unique_ptr<void, CloseLibrary> file = open_library();
    decltype(&cublasLtGetVersion) get_version{};
    decltype(&cublasLtCreate) create{};
    decltype(&cublasLtDestroy) destroy{};
    decltype(&cublasLtMatmulDescCreate) desc_create{};
    decltype(&cublasLtMatmulDescDestroy) desc_destroy{};
    decltype(&cublasLtMatmulDescSetAttribute) desc_set{};
    decltype(&cublasLtMatrixLayoutCreate) layout_create{};
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy{};
    decltype(&cublasLtMatmulPreferenceCreate) preference_create{};
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy{};
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set{};
    decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic{};
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get{};
    decltype(&cublasLtMatmul) matmul{};
    cublasLtHandle_t handle = nullptr;

    Library() {
        load(file.get(), "cublasLtGetVersion", get_version);
        load(file.get(), "cublasLtCreate", create);
        load(file.get(), "cublasLtDestroy", destroy);
        load(file.get(), "cublasLtMatmulDescCreate", desc_create);
        load(file.get(), "cublasLtMatmulDescDestroy", desc_destroy);
        load(file.get(), "cublasLtMatmulDescSetAttribute", desc_set);
        load(file.get(), "cublasLtMatrixLayoutCreate", layout_create);
        load(file.get(), "cublasLtMatrixLayoutDestroy", layout_destroy);
        load(file.get(), "cublasLtMatmulPreferenceCreate", preference_create);
        load(file.get(), "cublasLtMatmulPreferenceDestroy", preference_destroy);
        load(file.get(), "cublasLtMatmulPreferenceSetAttribute", preference_set);
        load(file.get(), "cublasLtMatmulAlgoGetHeuristic", get_heuristic);
        load(file.get(), "cublasLtMatmulAlgoConfigGetAttribute", config_get);
        load(file.get(), "cublasLtMatmul", matmul);
        check_cublas(create(&handle), "cublasLtCreate");
    }
    ~Library() { destroy(handle); }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    Owned<cublasLtMatrixLayout_t> layout(cudaDataType type, int64_t rows, int64_t columns) const {
        cublasLtMatrixLayout_t result = nullptr;
        check_cublas(
            layout_create(&result, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
            "cublasLtMatrixLayoutCreate");
        return {result, layout_destroy};
    }
    Owned<cublasLtMatmulDesc_t> description() const {
        cublasLtMatmulDesc_t result = nullptr;
        check_cublas(desc_create(&result, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
        Owned<cublasLtMatmulDesc_t> owned{result, desc_destroy};
        const cublasOperation_t transposed = CUBLAS_OP_T;
        check_cublas(desc_set(result, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
                     "cublasLtMatmulDescSetAttribute");
        return owned;
    }
    Owned<cublasLtMatmulPreference_t> preference(bool split_k_allowed) const {
        cublasLtMatmulPreference_t result = nullptr;
        check_cublas(preference_create(&result), "cublasLtMatmulPreferenceCreate");
        Owned<cublasLtMatmulPreference_t> owned{result, preference_destroy};
        check_cublas(preference_set(result, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                    sizeof workspace_bytes),
                     "cublasLtMatmulPreferenceSetAttribute(workspace)");
        const uint32_t schemes =
            split_k_allowed ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
        check_cublas(
            preference_set(result, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes),
            "cublasLtMatmulPreferenceSetAttribute(reduction schemes)");
        return owned;
    }
    uint32_t config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what) const {
        uint32_t value = 0;
        size_t written = 0;
        check_cublas(config_get(&algorithm, what, &value, sizeof value, &written),
                     "cublasLtMatmulAlgoConfigGetAttribute");
        return value;
    }
};

CublasLt::CublasLt() : library_(std::make_unique<Library>()) {}
CublasLt::~CublasLt() = default;

std::string CublasLt::version() const {
    const size_t version = library_->get_version();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CublasResult CublasLt::matmul(CublasShape shape, std::span<const uint16_t> x, std::span<const uint16_t> w,
                              bool split_k_allowed) const {
    const Library& lt = *library_;
    // cuBLAS thinks in columns: a row-major [rows, k] is its [k, rows], so W^T X gives D^T, our D by rows.
    const auto w_layout = lt.layout(CUDA_R_16BF, shape.k, shape.n);
    const auto x_layout = lt.layout(CUDA_R_16BF, shape.k, shape.m);
    const auto d_layout = lt.layout(CUDA_R_32F, shape.n, shape.m);
    const auto description = lt.description();
    const auto preference = lt.preference(split_k_allowed);
    cublasLtMatmulHeuristicResult_t choice{};
    int found = 0;
    check_cublas(lt.get_heuristic(lt.handle, description.get(), w_layout.get(), x_layout.get(),
                                  d_layout.get(), d_layout.get(), preference.get(), 1, &choice, &found),
                 "cublasLtMatmulAlgoGetHeuristic");
    check_cublas(found > 0 ? choice.state : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");

    const DeviceBuffer<uint16_t> device_x(x), device_w(w);
    const DeviceBuffer<uint32_t> device_d(static_cast<size_t>(shape.m * shape.n));
    const DeviceBuffer<std::byte> workspace(workspace_bytes);
    const Stream stream;
    const auto run = [&] {
        const float one = 1, zero = 0;
        return lt.matmul(lt.handle, description.get(), &one, device_w.data(), w_layout.get(), device_x.data(),
                         x_layout.get(), &zero, device_d.data(), d_layout.get(), device_d.data(),
                         d_layout.get(), &choice.algo, workspace.data(), workspace_bytes, stream.stream);
    };
    check_cublas(run(), "cublasLtMatmul");
    check(cudaStreamSynchronize(stream.stream), "cublasLtMatmul");
    CublasResult result{
        .outputs = device_d.to_host(),
        .algorithm = static_cast<int>(lt.config(choice.algo, CUBLASLT_ALGO_CONFIG_ID)),
        .split_k = static_cast<int>(lt.config(choice.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)),
        .reduction_scheme = scheme_name(lt.config(choice.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)),
        .kernels = ""};

    // Once more into a graph, which knows what it would launch. It runs nothing.
    check(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const cublasStatus_t captured = run();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream.stream, &graph);
    const Graph owned(graph);
    check_cublas(captured, "cublasLtMatmul in a capture");
    check(ended, "cudaStreamEndCapture");
    result.kernels = kernel_names(graph);
    return result;
}

}  // namespace touchstone::cuda
