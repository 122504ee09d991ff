// Asks the installed libraries what a token of the real model costs.
#include <fmt/format.h>

#include "reference/model/model.h"
#include "simulator/kv_accounting.h"

int main() {
    const touchstone::Model model = touchstone::find_model("deepseek-v4.1-flash");
    const touchstone::KvAccount account(model, "fp8-fp4index");
    fmt::print("{}: {} bytes per token\n", model.name, account.bytes_per_token().decimal());
}
