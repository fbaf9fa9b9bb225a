(class_declaration name: (identifier) @name superclass: (_)? @bases interfaces: (_)? @bases) @class
(record_declaration name: (identifier) @name interfaces: (_)? @bases) @class
(interface_declaration name: (identifier) @name (extends_interfaces)? @bases) @interface
(annotation_type_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(field_declaration declarator: (variable_declarator name: (identifier) @name)) @variable
(enum_constant name: (identifier) @name) @variable

(method_invocation name: (identifier) @call)
(object_creation_expression type: [(type_identifier) @call (generic_type (type_identifier) @call)])
(method_reference (identifier) @call .)
(marker_annotation name: (identifier) @call)
(annotation name: (identifier) @call)

(import_declaration [(scoped_identifier) (identifier)] @module)
