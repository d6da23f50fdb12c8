# Pages as C arrays (embed_page.cmake). mk_embed_page(NAME FOLDER SCRIPT...) makes NAME.c of FOLDER/page.html, page.css
# and the scripts, in the order in which the page runs them.
function(mk_embed_page name folder)
  list(TRANSFORM ARGN PREPEND ${folder}/ OUTPUT_VARIABLE scripts)
  string(REPLACE ";" "," script_list "${scripts}")
  add_custom_command(
    OUTPUT ${PROJECT_BINARY_DIR}/${name}.c
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DPAGE=${folder}/page.html -DSTYLE=${folder}/page.css
            -DSCRIPTS=${script_list} -DOUTPUT=${PROJECT_BINARY_DIR}/${name}.c
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    DEPENDS ${folder}/page.html ${folder}/page.css ${scripts} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    VERBATIM)
endfunction()

# Of `mkvm trace -o out.html`, and of `mkvm serve` at /.
mk_embed_page(mk_page ${PROJECT_SOURCE_DIR}/tools/profiler/page
              data.js view.js raster.js chart.js panel.js input.js main.js)
mk_embed_page(mk_serve_page ${PROJECT_SOURCE_DIR}/serve/page page.js)
