# Installs the built tree into a folder of its own, builds the consumer against it with find_package and checks what
# it prints. Variables: BINARY_DIR, GENERATOR, CXX_COMPILER, BUILD_TYPE, SANITIZE (may be empty).
set(work ${BINARY_DIR}/install_test)
file(REMOVE_RECURSE ${work})

# run(OUTPUT_VARIABLE command...): stops the test when the command fails.
function(run output)
    execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        list(JOIN ARGN " " line)
        message(FATAL_ERROR "install_test: '${line}' ended with ${status}:\n${text}")
    endif()
    set(${output} "${text}" PARENT_SCOPE)
endfunction()

set(flags "")
if(SANITIZE)
    set(flags -fsanitize=${SANITIZE})
endif()
run(log ${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${work}/prefix)
run(log ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
    -DCMAKE_CXX_FLAGS=${flags})
run(log ${CMAKE_COMMAND} --build ${work}/build)

run(printed ${work}/build/consumer)
file(READ ${CMAKE_CURRENT_LIST_DIR}/expected.txt expected)
if(NOT printed STREQUAL expected)
    message(FATAL_ERROR "install_test: the consumer printed '${printed}', expected '${expected}'")
endif()

run(printed ${work}/build/c_consumer)
if(NOT printed MATCHES "^[0-9.]+ of sinkhorn: 1 tensor\n$")
    message(FATAL_ERROR "install_test: the consumer of the C interface printed '${printed}'")
endif()

# The flags that fix the arithmetic travel with the package, the warnings do not.
file(READ ${work}/build/compile_commands.json commands)
if(NOT commands MATCHES "-ffp-contract=off")
    message(FATAL_ERROR "install_test: the consumer was compiled without -ffp-contract=off:\n${commands}")
endif()
if(commands MATCHES "-Werror")
    message(FATAL_ERROR "install_test: the consumer was compiled with -Werror:\n${commands}")
endif()
# Nothing of the source tree or the build folder may be needed by a consumer.
if(commands MATCHES "-I[^ ]*reference" OR NOT commands MATCHES "prefix/include/touchstone")
    message(FATAL_ERROR "install_test: include directories do not come from the prefix:\n${commands}")
endif()

run(json ${work}/prefix/bin/touchstone kv --json)
string(JSON bytes GET "${json}" bytes_per_token)
if(NOT bytes EQUAL 890)
    message(FATAL_ERROR "install_test: the installed program says ${bytes} bytes per token")
endif()
message(STATUS "install_test: consumer and installed program say 890 bytes per token")
