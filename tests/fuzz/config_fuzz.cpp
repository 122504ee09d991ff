// Any bytes given as a config.json are either refused with a UserError or give a configuration that is fully
// usable: it dumps, reads back as itself, and its layer roles hold only layers that exist.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "reference/io/user_error.h"
#include "reference/model/config.h"
#include "reference/model/layer_roles.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "config_fuzz: %s\n", what);
    std::abort();
}

bool is_layer_or_none(int source, const touchstone::LayerRole& role) {
    return -1 <= source && source <= role.layer;
}

void check_accepted(const touchstone::ModelConfig& config) {
    const std::string dump = touchstone::dump_config(config);
    require(touchstone::parse_config(dump, "dump") == config, "the dump reads back as another configuration");
    for (const touchstone::LayerRole& role : touchstone::layer_roles(config)) {
        require(is_layer_or_none(role.kv_source, role), "a KV source is no earlier layer");
        require(is_layer_or_none(role.index_key_source, role), "an index-key source is no earlier layer");
        require(is_layer_or_none(role.top_k_source, role), "a top-k source is no earlier layer");
        require((role.compress_ratio > 0) == (role.kv_source >= 0), "a compressed layer has no source");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        check_accepted(touchstone::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz"));
    } catch (const touchstone::UserError& error) {
        require(!error.parts().what.empty() && !error.parts().where.empty(),
                "a refusal without reason or place");
    }
    return 0;
}
